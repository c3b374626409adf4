"""Bad studies, settings, names, tables, logs and requests to `serve` are accepted, or refused in few words, and nothing
else happens."""

from __future__ import annotations

import copy
import io
import json
import re
import signal
from collections.abc import Callable
from contextlib import chdir, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import trl_logs
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import ablate
from pipeline.config import loading
from pipeline.errors import USER_ERROR, UserError
from studies.definition.authoring import template
from studies.definition.schema import STUDIES

MOST_LINES, SECONDS = 5, 40
"""Lines on standard error, and seconds of a case, at most."""
OBEYED = re.compile(r"(?![\n\t])[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing them."""
SMALL = b"""\
question: Does it matter?
profile: smoke
baseline: none
seeds: [0, 1]
arms:
  none: {}
  weak: {kl.beta: 0.01}
"""
Content = bytes | Callable[[Path], object]
ODD: list[Content] = [
    lambda path: None,
    lambda path: path.mkdir(),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/etc/passwd"),
    b"a" * 3_000_000,
]
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
names = st.sampled_from(NAMES)
values = st.sampled_from(VALUES) | names
FOUR = ("great", "dull", "slow", "fine")
TEXTS = [{"text": f"A {FOUR[n % 4]} film, review {n}.", "label": str(n % 2)} for n in range(30)]
PAIRS = [{"prompt": f"A film {n}", "chosen": f" is {FOUR[n % 4]}.", "rejected": f" was {n}."} for n in range(30)]
ANSWERS = [{"prompt": f"A film {n}", "completion": f" is {FOUR[n % 4]}."} for n in range(5)]
CALLS: dict[str, list[tuple[str, list[dict[str, Any]]]]] = {
    "data": [("read-texts {}", TEXTS), ("score {} --reward lexicon", ANSWERS)],
    "preferences": [("read-preferences {}", PAIRS), ("plan small.yaml --set reward.preferences={}", PAIRS)],
    "log": [
        (f"import . --name mine --map {mapped}", trl_logs.rows(updates=3)) for mapped in ("plain", "trl-ppo", "verl")
    ],
}
"""Commands that read tables, with sound rows; {} is the path."""
NAMED = (
    "{0}", "plan {0}", "plan small.yaml --profile {0}", "plan small.yaml --{0}", "plan --memory {0}", "report {0}",
    "compare {0} {1}", "falsify {0}", "falsify small.yaml --set {0}={1}", "sync {0}", "export {0} there",
    "export {0}/{1}/0 there", "score {0} --reward lexicon", "score a.csv --reward {0}",
    "score a.csv --reward lexicon --to {0}", "import {0} --name mine --map plain", "import . --name {0} --map plain",
    "import . --name mine --map {0}",
)  # fmt: skip
"""Every command that starts no training, with bad names and paths."""

Case = tuple[list[str], dict[str, Content]]
"""The words of a command line, and the files of the folder in which it is called."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Content with up to two things wrong: values, keys and lines of a text, or bytes of no grammar."""
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        lines, scalars, keys = (
            content.split(b"\n"),
            _spans(rb"(?<=: )[^\s,\[\]{}]+", content),
            _spans(rb"\b\w+(?=:)", content),
        )
        at, line = draw(st.integers(0, len(content))), draw(st.integers(0, len(lines) - 1))
        junk = draw(st.sampled_from(JUNK) | values.map(lambda value: value.encode("utf-8", "surrogatepass")))
        above, row, below = lines[:line], lines[line], lines[line + 1 :]
        (start, end), (key, _) = draw(st.sampled_from(scalars)), draw(st.sampled_from(keys))
        match draw(
            st.sampled_from(("value", "value", "value", "key", "times", "times", "indent", "cut", "bytes", "code"))
        ):
            case "value":
                content = content[:start] + junk + content[end:]
            case "key":
                content = content[:key] + content[key + 1 :]
            case "times":
                content = b"\n".join([*above, *[row] * draw(st.sampled_from((0, 0, 2, 1000))), *below])
            case "indent":
                content = b"\n".join([*above, b"  " + row.lstrip(), *below])
            case "cut":
                content = content[:at]
            case "code":
                content = content.decode("utf-8", "replace").encode("utf-16")
            case "bytes":
                content = content[:at] + junk + content[at + len(junk) :]
    return content


def _spans(pattern: bytes, content: bytes) -> list[tuple[int, int]]:
    return [one.span() for one in re.finditer(pattern, content)] or [(0, 0)]


def file_of(content: bytes) -> st.SearchStrategy[Content]:
    return st.one_of(*[damaged(content)] * 9, st.sampled_from(ODD))


@st.composite
def study(draw: st.DrawFn) -> Case:
    texts = [path.read_bytes() for path in sorted(STUDIES.glob("*.yaml"))]
    texts += [template(Path("mine.yaml"), one).encode() for one in ("arms", "grid", "factors", "search")]
    ending = draw(st.sampled_from(("", "", "", "+confirm")))
    return ["plan", f"mine.yaml{ending}"], {"mine.yaml": draw(st.sampled_from(texts).flatmap(file_of))}


@st.composite
def setting(draw: st.DrawFn) -> Case:
    key = st.sampled_from([*loading.dotted_keys(), "algorithm", "kl", "reward.parts.x.weight"]) | names
    changes = draw(st.lists(st.builds("{}={}".format, key, values), min_size=1, max_size=3))
    return ["plan", "small.yaml", *(part for one in changes for part in ("--set", one))], {"small.yaml": SMALL}


@st.composite
def name(draw: st.DrawFn) -> Case:
    call, two = draw(st.sampled_from(NAMED)), (draw(names), draw(names))
    files: dict[str, Content] = {"small.yaml": SMALL, "a.csv": b"prompt,completion\nA,b\n"}
    return [word.format(*two) for word in call.split()], files


@st.composite
def table(draw: st.DrawFn, kind: str) -> Case:
    """A command that reads tables, each with a bad cell or column now and then, and damaged as a file."""
    call, sound = draw(st.sampled_from(CALLS[kind]))
    suffix, files = draw(st.sampled_from(("csv", "jsonl", "parquet"))), dict[str, Content](**{"small.yaml": SMALL})
    for arm in ("a", "b")[: 2 if kind == "log" else 1]:
        rows, key, sink = copy.deepcopy(sound), draw(st.sampled_from(list(sound[0]))), io.BytesIO()
        wrong, column = draw(st.sampled_from(("", "", "cell", "column", "missing"))), draw(names)
        if wrong == "cell":
            draw(st.sampled_from(rows))[key] = draw(st.sampled_from(CELLS))
        with suppress(ValueError, TypeError, OverflowError, LookupError):  # the format cannot hold the cell or name
            frame = pd.DataFrame(rows)
            if wrong == "column":
                frame = frame.rename(columns={key: column})
            elif wrong == "missing":
                frame = frame.drop(columns=key)
            if suffix == "parquet":
                frame.to_parquet(sink)
            else:
                text = frame.to_csv(index=False) if suffix == "csv" else frame.to_json(orient="records", lines=True)
                sink.write(text.encode("utf-8", "surrogatepass"))
        files[f"{arm}/seed_0.{suffix}"] = draw(file_of(sink.getvalue()))
    return call.format(f"a/seed_0.{suffix}").split(), files


@st.composite
def request(draw: st.DrawFn) -> Case:
    """A request with up to three fields wrong."""
    keys = st.sampled_from(("prompt", "model", "max_tokens", "temperature", "n", "seed", "logprobs", "stop", "stream"))
    fields = {"prompt": '"The acting"', "max_tokens": "12"} | draw(st.dictionaries(keys | names, values, max_size=3))
    text = "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in fields.items()) + "}"
    method = draw(st.sampled_from(("POST",) * 9 + ("GET", "PUT", "TRACE")))
    odd = ("/", "/%00", "//etc/passwd", "/v1/models/..", "/" + "a" * 4096)
    path = draw(st.sampled_from(("/v1/completions",) * 9 + odd))
    return ["ask-server", method, path], {"body": draw(damaged(text.encode("utf-8", "surrogatepass")))}


KINDS: dict[str, st.SearchStrategy[Case]] = {
    "study": study(), "set": setting(), "name": name(), "request": request(), **{kind: table(kind) for kind in CALLS},
}  # fmt: skip
APP = copy.copy(ablate.app)
"""The commands, and some that read a file as a trial or the server does."""
APP.registered_commands = list(ablate.app.registered_commands)


@APP.command("read-texts")
@ablate.guarded
def _read_texts(path: str, out: str = "") -> None:
    from pipeline.data.corpus import load_corpus
    from pipeline.data.settings import DataConfig

    load_corpus(DataConfig.model_validate({"source": "local", "local": {"path": path}}))


@APP.command("read-preferences")
@ablate.guarded
def _read_preferences(path: str, out: str = "") -> None:
    from pipeline.data.corpus import read_preferences

    read_preferences(Path(path), "reward.preferences")


@APP.command("ask-server")
@ablate.guarded
def _ask_server(method: str, path: str, out: str = "") -> None:
    """Send the file ``body``; a refusal of the server is one of the user's errors."""
    headers = {"Content-Type": "application/json"}
    answer = _client().request(method, path, content=Path("body").read_bytes(), headers=headers)
    assert answer.status_code < 500, answer.text[:300]
    if answer.status_code >= 400:
        raise UserError(str(answer.json()["error"]["message"]))


@cache
def _client() -> Any:
    from starlette.testclient import TestClient
    from tiny_service import Tiny

    from studies.serving.app import create_app

    return TestClient(create_app(Tiny().server, ["testserver"]), raise_server_exceptions=False).__enter__()


def _late(*_: Any) -> None:
    raise TimeoutError("hang")


@pytest.mark.parametrize("kind", KINDS)
@settings.get_profile("fuzz")
@given(data=st.data())
def test_a_case_is_accepted_or_refused_in_few_words(
    kind: str, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr("studies.definition.authoring.write_schema", lambda: None)
    monkeypatch.delenv("ABLATE_HOME", raising=False)
    words, files = data.draw(KINDS[kind])
    with TemporaryDirectory(prefix="ablate-fuzz-", ignore_cleanup_errors=True) as made, chdir(made):
        for path in map(Path, files):
            content = files[str(path)]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content) if isinstance(content, bytes) else content(path)
        there = {*(one.name for one in Path().iterdir()), "out", "a.scored.csv", *(f"{word}.yaml" for word in words)}
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(SECONDS)
        try:
            done = CliRunner().invoke(APP, [*words, "--out", "out"])
        finally:
            signal.alarm(0)
        event("refused" if done.exit_code else "accepted")
        log = re.search(r"details: (\S.*)", done.stderr)
        assert done.exit_code in (0, USER_ERROR), Path(log[1].strip()).read_text()[-1500:] if log else done.stderr
        assert not OBEYED.findall(done.stderr + done.stdout)
        if done.exit_code:
            assert done.stderr.strip()
            assert done.stderr.strip().count("\n") < MOST_LINES
        assert there >= {one.name for one in Path().iterdir()}, "files outside of the output root"
