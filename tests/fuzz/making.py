"""What a maker of cases is, and the parts that all share: bad values, broken texts, files that are none."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz.oracle import OUT, Case

Maker = Callable[[random.Random, Path], Case]
"""Writes the files of a case into a folder, and says how the command is called there."""

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
_VALUES = (
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
"""Fragments of YAML that stand where a value is expected."""


def bad_value(rng: random.Random) -> str:
    """A fragment of YAML: one of the list, a name in quotes, or a name as it is."""
    roll = rng.random()
    if roll < 0.7:
        return rng.choice(_VALUES)
    name = rng.choice(NAMES)
    return quoted(name) if roll < 0.9 else name


def quoted(text: str) -> str:
    """A text as YAML and JSON both write it."""
    return '"' + "".join(c if " " <= c < "\x7f" and c not in '"\\' else _escape(c) for c in text) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


_ENTRY = re.compile(r"^(\s*(?:- )?)([^\s:#][^:#]*):(.*)$")


def mutated_yaml(rng: random.Random, text: str) -> bytes:
    """A YAML text with one to three things wrong."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice((_value, _value, _value, _value, _key, _indent, _drop, _twice, _added, _scalar))(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    return mutated_bytes(rng, data) if rng.random() < 0.15 else data


def _entries(lines: Sequence[str]) -> list[int]:
    return [at for at, line in enumerate(lines) if _ENTRY.match(line)]


def _value(rng: random.Random, text: str) -> str:
    """The value of an entry replaced, and what was indented below it gone or not."""
    lines = text.split("\n")
    at = rng.choice(_entries(lines) or [0])
    head = _ENTRY.match(lines[at])
    if head is None:
        return text
    lines[at] = f"{head[1]}{head[2]}: {bad_value(rng)}"
    if rng.random() < 0.8:
        depth = len(head[1])
        end = at + 1
        while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > depth):
            end += 1
        del lines[at + 1 : end]
    return "\n".join(lines)


def _scalar(rng: random.Random, text: str) -> str:
    """A number or word somewhere, within brackets too, replaced."""
    found = list(re.finditer(r"(?<=[\[{,:] )[\w.+-]+(?=[\]},\n])", text))
    if not found:
        return text
    one = rng.choice(found)
    return text[: one.start()] + bad_value(rng) + text[one.end() :]


def _key(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.choice(_entries(lines) or [0])
    head = _ENTRY.match(lines[at])
    if head is not None:
        lines[at] = f"{head[1]}{rng.choice((bad_value(rng), rng.choice(NAMES), head[2][:-1], head[2] + 'x'))}:{head[3]}"
    return "\n".join(lines)


def _indent(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((" ", "  ", "\t", "- ", "")) + lines[at].lstrip(rng.choice((" ", "", " -")))
    return "\n".join(lines)


def _drop(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    return "\n".join(lines[:at] + lines[at + rng.choice((1, 1, 2, 5)) :])


def _twice(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    to = rng.choice((at, rng.randrange(len(lines))))
    return "\n".join(lines[:to] + lines[at : at + rng.choice((1, 1, 3))] * rng.choice((1, 1, 2, 1000)) + lines[to:])


def _added(rng: random.Random, text: str) -> str:
    return (
        text
        + f"\n{rng.choice((rng.choice(NAMES), 'seeds', 'arms', 'grid', 'search', 'name', '---'))}: {bad_value(rng)}\n"
    )


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with something wrong that no grammar knows of."""
    at = rng.randrange(len(data) + 1)
    span = rng.choice((1, 2, 8, 64, 4096))
    match rng.randrange(13):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([(data[at : at + 1] or b"\0")[0] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 2:
            return data[:at] + rng.randbytes(span) + data[at:]
        case 3:
            return data[:at] + rng.randbytes(span) + data[at + span :]
        case 4:
            return data[:at] + b"\0" * span + data[at:]
        case 5:
            return b"\xef\xbb\xbf" + data
        case 6:
            return data.decode("utf-8", "replace").encode(
                rng.choice(("utf-16", "utf-16-be", "utf-32", "latin-1")), "replace"
            )
        case 7:
            return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\x85", b"")))
        case 8:
            return rng.choice((b"", b"\n", b" ", b"\0", b"\xff\xfe", b"\xef\xbb\xbf"))
        case 9:
            return rng.randbytes(rng.choice((1, 100, 10_000)))
        case 10:
            return data[:at] + data[at : at + span] * rng.choice((2, 1000)) + data[at:]
        case 11:
            return (
                data[:at]
                + rng.choice((b"\x1b[2J", b"\x07", b"\xc2\x9b", b"\xed\xa0\x80", b"\xc0\xaf", b'"', b"'"))
                + data[at:]
            )
        case _:
            return data[:at] + data[at + span :]


def no_file(rng: random.Random, path: Path) -> None:
    """Put something at `path` that is no plain file, or one that never ends."""
    kinds = [
        "folder",
        "dangling",
        "loop",
        "zero",
        "fifo",
        "outside",
        "absent",
        "sparse",
        "random",
        "device",
        "self",
        "long",
    ]
    if os.geteuid() != 0:
        kinds.append("locked")  # root reads everything
    path.parent.mkdir(parents=True, exist_ok=True)
    match rng.choice(kinds):
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to(path.with_name("nowhere"))
        case "loop":
            path.symlink_to(path.with_name("back"))
            path.with_name("back").symlink_to(path)
        case "self":
            path.symlink_to(path.name)
        case "zero":
            path.symlink_to("/dev/zero")
        case "random":
            path.symlink_to("/dev/urandom")
        case "device":
            path.symlink_to("/dev/null")
        case "fifo":
            os.mkfifo(path)
        case "outside":
            path.symlink_to("/etc/passwd")
        case "sparse":
            with path.open("wb") as file:
                file.truncate(2**40)
        case "long":
            path.write_bytes(b"a" * 3_000_000)
        case "locked":
            path.write_text("text,label\na,1\n")
            path.chmod(0)
        case _:
            pass


STUDY = """\
question: Does it matter?
profile: smoke
baseline: none
seeds: [0, 1]
arms:
  none: {}
  weak: {kl.beta: 0.01}
"""


def small_study(folder: Path) -> str:
    """A study of two arms and two seeds; its name on the command line."""
    (folder / "small.yaml").write_text(STUDY)
    return "small.yaml"


def command(*arguments: str) -> tuple[str, ...]:
    """A command with the output root of the case."""
    return (*arguments, "--out", OUT)


def choice_of(rng: random.Random, *makers: Maker) -> Maker:
    """One of several makers of a kind."""
    return rng.choice(makers)
