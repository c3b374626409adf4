"""The kinds of cases: a command line with bad studies, settings, names, files of texts, pairs and logs, and requests to
`serve`."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import trl_logs
from hypothesis import strategies as st

from pipeline.config import loading
from studies.definition.authoring import template
from studies.definition.schema import STUDIES

OUT = "out"
"""Output root of a case, in the case's own folder."""
STUDY = b"""\
question: Does it matter?
profile: smoke
baseline: none
seeds: [0, 1]
arms:
  none: {}
  weak: {kl.beta: 0.01}
"""
ODD: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "outside": lambda path: path.symlink_to("/etc/passwd"),
    "long": lambda path: path.write_bytes(b"a" * 3_000_000),
}
"""Files that are none, or that never end."""
NAMES = (
    "", " ", ".", "..", "../up", "/etc/passwd", "/dev/zero", "a/b/c", "a" * 4096, "é" * 300, "~", "~nobody_here/x",
    "$HOME", "-", "--", "-x", "a:b", "a\x00b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb", "a\nb", "\x9b31m",
    "\u202etxt.yaml", "\ud800", "kl.b\u0435ta", "\U0001f600", "%s%n", "{0}", "*", "[", "+confirm", "tiny", "baseline",
    "[bold]x[/bold]", "[/]", "a\u2028b",
)  # fmt: skip
VALUES = (
    "", "null", "true", "0", "-1", "1", "0.5", "1e-320", "1e308", "1e400", ".nan", "-.inf", "1000000000000", "9" * 5000,
    "9223372036854775808", "0x" + "f" * 4000, "2026-02-30", "=", "<<", "*a", "&a [*a]", "!!int 'x'", "!!set {a, b}",
    "!!python/object/apply:os.system [id]", "!x y", "[]", "{}", "[[]]", "{a: b}", "[1, 2, 3]", "{null: 1}",
    "{a: 1, a: 2}", "'", '"', "@x", "|\n  a\n  b", "[" * 3000, "{a: " * 3000, '"\\ud800"', '"\\0"', '"\\e[31m"',
    '"\\u202e"', "[" + ", ".join(map(str, range(20_000))) + "]", "x" * 70_000, "{low: 0, high: 1e400}", "[0.1, 0.1]",
    "{values: [0.1, .nan]}", "{metric: eval/win_rate, max: 1, min: 0}", "NaN", '{"a": 1, "a": 2}', '["x", 1]',
    '["x"' + ', "x"' * 70 + "]", "undefined", "[1, 2",
)  # fmt: skip
"""Fragments that stand where a value of YAML or JSON is expected."""
JUNK = (b"\0", b"\0" * 4096, b"\xff\xfe", b"\x1b[2J", b"\xc2\x9b", b"\xed\xa0\x80", b'"', b"\r", b"\n\n")
CELLS = (None, True, -1, 0.5, 2**63, float("nan"), float("inf"), [], {}, [[1]], "x" * 100_000, b"\xff")
names, values = st.sampled_from(NAMES), st.sampled_from(VALUES) | st.sampled_from(NAMES)
WORDS = ("great", "dull", "slow", "fine")
TABLES: dict[str, list[dict[str, Any]]] = {
    "texts": [{"text": f"A {WORDS[n % 4]} film, review {n}.", "label": str(n % 2)} for n in range(30)],
    "pairs": [{"prompt": f"A film {n}", "chosen": f" is {WORDS[n % 4]}.", "rejected": f" was {n}."} for n in range(30)],
    "answers": [{"prompt": f"A film {n}", "completion": f" is {WORDS[n % 4]}."} for n in range(5)],
    "log": [dict(row) for row in trl_logs.rows(updates=3)],
}
TIMES = st.sampled_from((0, 0, 2, 1000))
"""Copies of a line in a damaged text."""
SCALAR = re.compile(rb"(?<=: )[^\s,\[\]{}]+")


@dataclass(frozen=True)
class Case:
    """A command line, the files of the folder in which it is called, and the names that it may write there."""

    arguments: tuple[str, ...]
    files: dict[str, bytes | str] = field(default_factory=dict)
    """Files by path: the content, or a name of `ODD`."""
    writes: tuple[str, ...] = ()


def planned(*settings: str, **files: bytes | str) -> Case:
    """`plan` of a small study with settings."""
    changes = [part for one in settings for part in ("--set", one)]
    return Case(("plan", "small.yaml", *changes, "--out", OUT), {"small.yaml": STUDY, **files})


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Content with up to two things wrong: values and lines of a text, or bytes of no grammar."""
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        places, lines = list(SCALAR.finditer(content)), content.split(b"\n")
        at, line = draw(st.integers(0, len(content))), draw(st.integers(0, len(lines) - 1))
        junk = draw(st.sampled_from(JUNK) | values.map(lambda value: value.encode("utf-8", "surrogatepass")))
        match draw(st.sampled_from(("value", "value", "value", "times", "times", "indent", "cut", "bytes", "code"))):
            case "value" if places:
                one = draw(st.sampled_from(places))
                content = content[: one.start()] + junk + content[one.end() :]
            case "times":
                content = b"\n".join(
                    lines[:line] + lines[line : line + 1] * draw(st.sampled_from((0, 0, 2, 1000))) + lines[line + 1 :]
                )
            case "indent":
                content = b"\n".join([*lines[:line], b"  " + lines[line].lstrip(), *lines[line + 1 :]])
            case "cut":
                content = content[:at]
            case "code":
                content = content.decode("utf-8", "replace").encode("utf-16")
            case _:
                content = content[:at] + junk + content[at + len(junk) :]
    return content


def file_of(content: bytes) -> st.SearchStrategy[bytes | str]:
    return st.one_of(*[damaged(content)] * 9, st.sampled_from(list(ODD)))


@st.composite
def table(draw: st.DrawFn, kind: str) -> tuple[str, bytes | str]:
    """A table of a kind, with a bad cell or column now and then: its path, and its content."""
    rows = [dict(row) for row in TABLES[kind]]
    name, suffix = draw(st.sampled_from(list(rows[0]))), draw(st.sampled_from(("csv", "jsonl", "parquet")))
    match draw(st.sampled_from(("", "", "cell", "column", "missing"))):
        case "cell":
            rows[draw(st.integers(0, len(rows) - 1))][name] = draw(st.sampled_from(CELLS))
        case "column":
            rows = [{draw(names) if key == name else key: cell for key, cell in row.items()} for row in rows]
        case "missing":
            rows = [{key: cell for key, cell in row.items() if key != name} for row in rows]
    try:
        frame, sink = pd.DataFrame(rows), io.BytesIO()
        if suffix == "parquet":
            frame.to_parquet(sink)
        else:
            text = frame.to_csv(index=False) if suffix == "csv" else frame.to_json(orient="records", lines=True)
            sink.write(text.encode("utf-8", "surrogatepass"))
    except (ValueError, TypeError, OverflowError, LookupError):  # the format cannot hold the cell
        return f"{kind}.{suffix}", b""
    return f"{kind}.{suffix}", draw(file_of(sink.getvalue()))


@st.composite
def study(draw: st.DrawFn) -> Case:
    texts = [path.read_bytes() for path in sorted(STUDIES.glob("*.yaml"))]
    texts += [template(Path("mine.yaml"), one).encode() for one in ("arms", "grid", "factors", "search")]
    ending = draw(st.sampled_from(("", "", "", "+confirm")))
    content = draw(st.sampled_from(texts).flatmap(file_of))
    return Case(("plan", f"mine.yaml{ending}", "--out", OUT), {"mine.yaml": content})


@st.composite
def setting(draw: st.DrawFn) -> Case:
    key = st.sampled_from([*loading.dotted_keys(), "algorithm", "kl", "reward.parts.x.weight"]) | names
    return planned(*draw(st.lists(st.builds("{}={}".format, key, values), min_size=1, max_size=3)))


@st.composite
def name(draw: st.DrawFn) -> Case:
    """Names and paths on the command line of every command that starts no training."""
    bad, other = draw(names), draw(names)
    calls = (
        ("plan", bad), ("plan", "small.yaml", "--profile", bad), ("plan", "--memory", bad), ("report", bad),
        ("compare", bad, other), ("falsify", bad), ("falsify", "small.yaml", "--set", f"{bad}={other}"), ("sync", bad),
        ("export", bad, "there"), ("export", f"{bad}/{other}/0", "there"), ("score", bad, "--reward", "lexicon"),
        ("score", "a.csv", "--reward", bad), ("score", "a.csv", "--reward", "lexicon", "--to", bad), (bad,),
        ("plan", "small.yaml", f"--{bad}"), ("import", bad, "--name", "mine", "--map", "plain"),
        ("import", ".", "--name", bad, "--map", "plain"), ("import", ".", "--name", "mine", "--map", bad),
    )  # fmt: skip
    files: dict[str, bytes | str] = {"small.yaml": STUDY, "a.csv": b"prompt,completion\nA,b\n"}
    return Case((*draw(st.sampled_from(calls)), "--out", OUT), files, ("mine.yaml", f"{bad}.yaml", "a.scored.csv"))


def read(kind: str, *words: str, writes: tuple[str, ...] = ()) -> st.SearchStrategy[Case]:
    """A command on a table of a kind, whose path stands in the place of PATH."""

    def case(made: tuple[str, bytes | str]) -> Case:
        path, content = made
        named = [word.replace("PATH", path) for word in words]
        return Case((*named, "--out", OUT), {"small.yaml": STUDY, path: content}, writes)

    return table(kind).map(case)


SCORED = tuple(f"answers.scored.{suffix}" for suffix in ("csv", "jsonl", "parquet"))
data = read("texts", "read-texts", "PATH") | read("answers", "score", "PATH", "--reward", "lexicon", writes=SCORED)
preferences = read("pairs", "read-preferences", "PATH")
preferences |= read("pairs", "plan", "small.yaml", "--set", "reward.preferences=PATH")


@st.composite
def log(draw: st.DrawFn) -> Case:
    """Logs of other programs."""
    files: dict[str, bytes | str] = {}
    for arm in ("a", "b"):
        path, content = draw(table("log"))
        files[f"logs/{arm}/seed_0{Path(path).suffix}"] = content
    mapped = draw(st.sampled_from(("plain", "trl-ppo", "verl")))
    return Case(("import", "logs", "--name", "mine", "--map", mapped, "--out", OUT), files, ("mine.yaml",))


@st.composite
def request(draw: st.DrawFn) -> Case:
    """A request with up to three things wrong."""
    keys = st.sampled_from(("prompt", "model", "max_tokens", "temperature", "n", "seed", "logprobs", "stop", "stream"))
    fields = {"prompt": '"The acting"', "max_tokens": "12"} | draw(st.dictionaries(keys | names, values, max_size=3))
    text = "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in fields.items()) + "}"
    method = draw(st.sampled_from(("POST",) * 9 + ("GET", "PUT", "TRACE")))
    path = draw(
        st.sampled_from(("/v1/completions",) * 9 + ("/", "/%00", "//etc/passwd", "/v1/models/..", "/" + "a" * 4096))
    )
    body = draw(damaged(text.encode("utf-8", "surrogatepass")))
    return Case(("ask-server", f"--method={method}", f"--path={path}"), {"body": body})


KINDS: dict[str, st.SearchStrategy[Case]] = {
    "study": study(), "set": setting(), "name": name(), "data": data,
    "preferences": preferences, "log": log(), "request": request(),
}  # fmt: skip
