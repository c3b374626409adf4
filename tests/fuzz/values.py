"""Strategies of names, values, texts and tables, most of them with something wrong."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import trl_logs
from hypothesis import strategies as st

Row = Mapping[str, Any]
Draw = st.DrawFn
NAMES = (
    "", " ", ".", "..", "../up", "../../../tmp/ablate-escaped", "/etc/passwd", "/dev/zero", "/dev/null/x", "a/b/c",
    "a\\b", "a" * 4096, "é" * 300, "x" * 255 + ".yaml", "~", "~nobody_here/x", "$HOME", "-", "--", "-x", "CON",
    "nul.txt", "a:b", "\x00", "a\x00b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x07", "a\rb", "a\nb", "a\tb",
    "\x9b31m", "\u202etxt.yaml", "\ud800", "\udcff", "kl.b\u0435ta", "\uff4bl.beta", "tiny\u200b", "\U0001f600",
    "%s%n", "{0}", "{seed}", "*", "?", "[", "name+confirm", "+confirm", "kl_ablation+confirm+confirm", "tiny",
    "baseline", "[bold]x[/bold]", "[/]", "a\u2028b", "a\x85b",
)  # fmt: skip
"""As names and as values."""
DEEP = 3_000
BOMB = "&a0 [x, x, x, x, x, x, x, x, x, x]"
YAML = (
    "", "~", "null", "true", "false", "yes", "off", "0", "-1", "1", "0.5", "-0.0", "1e-320", "1e308", "1e400", ".nan",
    "-.inf", ".inf", "NaN", "inf", "1000000000", "1000000000000", "9223372036854775808", "9" * 400, "9" * 5000,
    "0x" + "f" * 4000, "0b1", "0o17", "017", "1_000", "1:30", "190:20:30.5", "2026-01-01", "2026-02-30",
    "2026-01-01 25:61:61", "=", "<<", "*a", "*", "&a", "&a [*a]", "&a {b: *a}", "!!int 'x'", "!!int", "!!float abc",
    "!!timestamp x", "!!bool perhaps", "!!binary '%'", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a]", "!!null x",
    "!!str 5", "!!seq {}", "!!map []", "!!python/object/apply:os.system [id]", "!x y", "!!python/name:os.system",
    "!<tag:yaml.org,2002:int> y", "[]", "{}", "[[]]", "{a: b}", "[1, 2, 3]", "{1: 2}", "{[1]: 2}", "{{a: b}: c}",
    "{null: 1}", "{true: 1, 1: 2}", "{a: 1, a: 2}", "? [a]\n", "- - -", ": :", "'", '"', '"\\', "@x", "`x", "%x",
    "|\n  a\n  b", ">\n  a", "|9\n x", "# no value", "[" * DEEP, "[" * DEEP + "]" * DEEP, "{a: " * DEEP, "- " * DEEP,
    "[a, " * 500, '"\\ud800"', '"\\0"', '"\\e[31m"', '"\\a"', '"\\x9b"', '"\\r\\n"', '"\\u202e"', '"\\U00110000"',
    '"\\N"', "\ufeff", "a\ufeffb", "[" + ", ".join(map(str, range(20_000))) + "]",
    "[" + ", ".join(["0"] * 3_000) + "]", "{" + ", ".join(f"key{n}: {n}" for n in range(20_000)) + "}",
    "{" + ", ".join(f"kl.x{n}: {n}" for n in range(300)) + "}",
    "{" + ", ".join(f"a{n}: {{kl.beta: 0.{n}1}}" for n in range(400)) + "}", "x" * 4096, "x " * 30_000,
    "'" + "y" * 70_000 + "'",
    "[" + BOMB + ", " + ", ".join(f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)) + "]",
    "[&m0 {k: v}, " + ", ".join(f"&m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}], k{n}: v}}" for n in range(1, 9)) + "]",
    "{low: 0, high: 1e400}", "{low: 1, high: 2, int: true, log: true}", "{values: [[1], [2]]}",
    "{values: [0.1, .nan]}", "[0.1, 0.1]", "['0.1', 0.1]", "[.nan, .nan]", "[null]", "[[1, 2], [3]]", "[-1]", "[0.5]",
    "['0']", "[true]", "[1, true]", "[1000000000000]", "[18446744073709551616]", "{top: 1000000000, seeds: [7, 8]}",
    "{metric: eval/win_rate, max: 1, min: 0}",
)  # fmt: skip
"""Fragments that stand where YAML is expected."""
JSON = (
    "null", "true", "false", "0", "1", "-1", "2", "64", "65", "1024", "1025", "0.5", "-0.0", "1e308", "1e400", "1e999",
    "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000, "1" + "0" * 30, "9223372036854775808", "1000000000", '""',
    '" "', '"\\u0000"', '"\\ud800"', '"\\u202e"', '"\\u001b[2J"', '"x"', '["x"]', '["x", 1]', "[]", "[[1, 2]]", "[1, 2",
    '["", "x"]', "{}", '{"a": 1}', '{"a": 1, "a": 2}', '{"include_usage": "yes"}', '{"include_usage": true}',
    "[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, '["x"' + ', "x"' * 70 + "]", '"' + "word " * 200 + '"',
    '"' + "é" * 3000 + '"', '"' + "x" * 300_000 + '"', "'x'", "{'a': 1}", "undefined", "", "01", "0x10", "1.", ".5",
    "--1", "1_000", "[" + "1," * 5000 + "1]", '["a", "b", "c", "d", "e"]', '"1e5"', '" 3 "', '"nan"',
)  # fmt: skip
"""The same of JSON."""
CELLS = (
    None, True, 0, -1, 0.5, 2**63, 10**40, 10**5000, float("nan"), float("inf"), -1e308, 1e-320, [], {}, [1], [[1]],
    {"a": 1}, "x" * 100_000, b"\xff",
)  # fmt: skip
JUNK = (
    b"\0", b"\0" * 64, b"\0" * 4096, b"\xff\xfe", b"\x1b[2J", b"\x07", b"\xc2\x9b", b"\xed\xa0\x80", b"\xc0\xaf", b'"',
    b"'", b"\r", b"\r\n", b"\n\n", b"\x85",
)  # fmt: skip

names = st.sampled_from(NAMES)
yaml_values = st.one_of(st.sampled_from(YAML), st.sampled_from(YAML), names.map(json.dumps), names)
json_values = st.one_of(st.sampled_from(JSON), st.sampled_from(JSON), names.map(json.dumps))


def mostly(usual: Any, other: st.SearchStrategy[Any], times: int = 8) -> st.SearchStrategy[Any]:
    """`usual` (a value or a strategy) `times` as often as the other."""
    usual = usual if isinstance(usual, st.SearchStrategy) else st.just(usual)
    return st.integers(0, times).flatmap(lambda number: other if number == times else usual)


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """Bytes with something wrong that no grammar knows of."""
    at, span = draw(st.integers(0, len(data))), draw(st.sampled_from((1, 2, 8, 64, 4096)))
    head, tail, junk = data[:at], data[at:], draw(st.sampled_from(JUNK) | st.binary(min_size=1, max_size=64))
    texts = (data.decode("utf-8", "replace").encode(code, "replace") for code in ("utf-16", "utf-32-be", "latin-1"))
    made = (
        head, b"", junk, head + tail[span:], head + junk + tail, head + junk + tail[len(junk) :],
        head + tail[:span] * 1000 + tail, b"\xef\xbb\xbf" + data, data.replace(b"\n", junk), *texts,
    )  # fmt: skip
    return draw(st.sampled_from(made))


ENTRY = re.compile(r"^(\s*(?:- )?)([^\s:#][^:#]*):(.*)$")
SCALAR = re.compile(r"(?<=[\[{,:] )[\w.+-]+(?=[\]},\n])")


@st.composite
def mutated_yaml(draw: Draw, text: str) -> bytes:
    """A YAML text with one to three things wrong."""
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        lines = text.split("\n")
        at = draw(st.sampled_from([n for n, line in enumerate(lines) if ENTRY.match(line)] or [0]))
        found, value = ENTRY.match(lines[at]), draw(yaml_values)
        head, key, rest = found.groups() if found else ("", "x", "")
        end = next(
            (n for n in range(at + 1, len(lines)) if len(lines[n]) - len(lines[n].lstrip()) <= len(head)), at + 1
        )
        match draw(
            st.sampled_from(("value", "scalar", "scalar", "scalar", "head", "key", "indent", "drop", "again", "more"))
        ):
            case "value":  # what is indented below it goes
                lines[at:end] = [f"{head}{key}: {value}"]
            case "head":
                lines[at] = f"{head}{key}: {value}"
            case "key":
                lines[at] = f"{head}{draw(st.sampled_from((value, key[:-1], key + 'x')) | names)}:{rest}"
            case "scalar" if places := list(SCALAR.finditer(text)):
                one = draw(st.sampled_from(places))
                lines = [text[: one.start()] + value + text[one.end() :]]
            case "indent":
                lines[at] = draw(st.sampled_from((" ", "  ", "\t", "- ", ""))) + lines[at].lstrip(" ")
            case "drop":
                del lines[at : at + draw(st.sampled_from((1, 2, 5)))]
            case "again":
                lines[at:at] = lines[at:end] * draw(st.sampled_from((1, 2, 1000)))
            case _:
                lines.append(f"{draw(names | st.sampled_from(('seeds', 'arms', 'grid', 'search', '---')))}: {value}\n")
        text = "\n".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    return draw(mostly(data, damaged(data)))


# --- tables --------------------------------------------------------------------------------------------------------

WORDS = ("great", "dull", "slow", "fine")
TEXTS: list[Row] = [{"text": f"A {WORDS[n % 4]} film, review {n}.", "label": str(n % 2)} for n in range(30)]
PAIRS: list[Row] = [
    {"prompt": f"A film {n}", "chosen": f" is {WORDS[n % 4]}.", "rejected": f" was bad {n}."} for n in range(30)
]
RANKINGS: list[Row] = [
    {"prompt": f"A film {n}", "completions": [f" is {word}" for word in WORDS[:3]], "ranks": [2, 1, 3]}
    for n in range(30)
]
ANSWERS: list[Row] = [{"prompt": f"A film {n}", "completion": f" is {WORDS[n % 4]}."} for n in range(5)]
OUTCOMES: list[Row] = [
    {"prompt_id": n, "win": n % 2, "kl": 0.1 * n, "policy_gold": 0.5, "reference_gold": 0.1} for n in range(5)
]
LOG: list[Row] = list(trl_logs.rows(updates=3))


@st.composite
def table(draw: Draw, rows: Sequence[Row], suffix: str) -> bytes:
    """The rows in a format, with something wrong more often than not."""
    found = [dict(row) for row in rows[: draw(st.sampled_from((1, 3, 30)))]]
    at, name = draw(st.integers(0, len(found) - 1)), draw(st.sampled_from(list(rows[0])))
    value, other = draw(names | st.sampled_from(CELLS)), draw(names)
    match draw(st.sampled_from(("", "", "", "", "cell", "column", "name", "missing", "many"))):
        case "cell":
            found[at][name] = value
        case "column":
            found = [row | {name: value} for row in found]
        case "name":
            found = [{other if key == name else key: cell for key, cell in row.items()} for row in found]
        case "missing":
            found = [{key: cell for key, cell in row.items() if key != name} for row in found]
        case "many":
            found = found * 50
    try:
        data = draw({"csv": as_csv, "jsonl": as_jsonl, "json": as_json, "parquet": as_parquet}[suffix](found))
    except (ValueError, TypeError, OverflowError, NotImplementedError):  # pyarrow or UTF-8 cannot hold it
        data = b""
    return draw(mostly(data, damaged(data), 1))


@st.composite
def as_csv(draw: Draw, rows: Sequence[Row]) -> bytes:
    file, twice = io.StringIO(newline=""), draw(st.sampled_from((1, 1, 1, 1, 2)))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(file, delimiter=draw(st.sampled_from((",", ",", ",", ";", "\t"))))
    writer.writerow(columns * twice)
    writer.writerows(
        [[_plain(row.get(name, "")) for name in columns] * draw(mostly(twice, st.just(1))) for row in rows]
    )
    return file.getvalue().encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    """A cell that csv and json can write."""
    if isinstance(value, int) and value > 10**4000:
        return "1" + "0" * 5000
    return value.hex() if isinstance(value, bytes) else value


@st.composite
def lines_of(draw: Draw, rows: Sequence[Row]) -> list[str]:
    lines = [json.dumps({name: _plain(value) for name, value in row.items()}) for row in rows]
    if draw(st.booleans()):
        at, bad, name = draw(st.integers(0, len(lines) - 1)), draw(json_values), json.dumps(draw(names))
        key = draw(st.sampled_from((name, *(json.dumps(one) for one in rows[0]))))
        wrong = (bad, f"{lines[at][:-1]}, {key}: {bad}}}", f"{{{key}: {bad}}}", lines[at][: len(lines[at]) // 2])
        lines[at] = draw(st.sampled_from(wrong))
    return lines


def as_jsonl(rows: Sequence[Row]) -> st.SearchStrategy[bytes]:
    return lines_of(rows).map(lambda lines: "".join(f"{line}\n" for line in lines).encode())


@st.composite
def as_json(draw: Draw, rows: Sequence[Row]) -> bytes:
    """A list, or the state of a trainer."""
    text = f"[{', '.join(draw(lines_of(rows)))}]"
    state = f'{{"best": null, "log_history": {text}, "x": {draw(json_values)}}}'
    return draw(st.sampled_from((text, state))).encode()


@st.composite
def as_parquet(draw: Draw, rows: Sequence[Row]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), sink)
    data: bytes = sink.getvalue().to_pybytes()
    at = len(data) - 8 - draw(st.integers(0, min(400, len(data) - 9)))  # the footer: schema and numbers of rows
    broken = st.binary(min_size=1, max_size=4).map(lambda junk: data[:at] + junk + data[at + len(junk) :])
    return draw(mostly(mostly(data, broken, 1), st.just(many_rows()), 10))


@cache
def many_rows() -> bytes:
    """A table of 12 million equal rows, in a few kilobytes."""
    sink, column = pa.BufferOutputStream(), pa.nulls(12_000_000, pa.string())
    pq.write_table(pa.table(dict.fromkeys(("text", "label", "prompt", "completion", "step"), column)), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
