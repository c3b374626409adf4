from __future__ import annotations

import copy
import json
import re
import signal
from collections.abc import Callable
from contextlib import chdir, suppress
from functools import cache
from io import StringIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import trl_logs
import yaml
from helpers import write_table
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import ablate
from pipeline.config import loading
from pipeline.config.presets import PRESETS
from pipeline.data.corpus import load_corpus, read_preferences
from pipeline.data.settings import DataConfig
from pipeline.errors import USER_ERROR, UserError
from studies.definition.authoring import study_schema, template
from studies.definition.schema import STUDIES

MOST_LINES, SECONDS = 5, 40
"""Lines on standard error, and seconds of a case, at most."""
OBEYED = re.compile(r"(?![\n\t])[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing them."""
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


class Cases(yaml.SafeLoader):
    """Reads cases.yaml."""


def _times(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> str:
    before, text, times, after = loader.construct_sequence(node)
    return f"{before}{''.join(text.replace('#', str(n)) for n in range(times))}{after}"


Cases.add_constructor("!times", _times)
CASES = yaml.load(Path(__file__).with_name("cases.yaml").read_text("utf-8"), Cases)
SMALL = CASES["small"].encode()
ROWS = {name: pd.read_csv(StringIO(text)).to_dict("records") for name, text in CASES["sound"].items()}
ROWS["log"] = trl_logs.rows(updates=3)
names = st.sampled_from(CASES["names"])
values = st.sampled_from([*chain(*CASES["values"])]) | names
junk = st.sampled_from(CASES["junk"]).map(lambda one: one.encode("latin-1")) | values.map(
    lambda one: one.encode("utf-8", "surrogatepass")
)
SPANS = [
    re.compile(one)
    for one in (
        rb"(?<=: )(?:[^\s,\[\]{}]+|\[[^\[\]]*\])",
        rb"\b\w+(?=:)",
        rb"[^\s,\[\]{}]+, ",
        rb"(?m)^.*\n",
        rb"(?s).",
        rb"(?s).*",
    )
]
"""A scalar or list, a key, an element, a line, a byte, and all that is left."""
SHIPPED = [path.read_text("utf-8") for path in sorted(STUDIES.glob("*.yaml"))]
TEXTS = [*SHIPPED, *(template(Path("mine.yaml"), one) for one in ("arms", "grid", "factors", "search"))]
TYPES = {"integer": [1, 2, 30], "number": [0.5, 1, 30], "boolean": [True, False], "array": [[8, 3]]}
RIGHT = {("algorithm", json.dumps(name)) for name in PRESETS}
for key, knob in study_schema()["$defs"]["Overrides"]["properties"].items():
    allowed = knob.get("anyOf", [knob])[0]
    RIGHT |= {(key, json.dumps(one)) for one in allowed.get("enum") or TYPES.get(allowed.get("type"), [])}
for arm in chain(*(yaml.safe_load(text).get("arms", {}).values() for text in SHIPPED)):
    RIGHT |= {(key, json.dumps(one)) for key, one in arm.items()}
"""Settings that are right for their own key, so that checks of several keys and of whole lists are reached."""
Case = tuple[list[str], dict[str, Content]]
"""The words of a command line, and the files of the folder in which it is called."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Content in which up to two spans are replaced: by nothing, junk, themselves many times, indented or recoded."""
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        at = draw(st.sampled_from((0, None, None, None)))
        at = draw(st.integers(0, len(content))) if at is None else at
        found = draw(st.sampled_from(SPANS)).search(content, at)
        start, end = found.span() if found else (at, at)
        span, bad = content[start:end], draw(junk)
        recoded = span.decode("utf-8", "replace").encode("utf-16")
        copies = (b"", span * 2, span * 1000, b"  " + span.lstrip(), recoded)
        content = content[:start] + draw(st.sampled_from((bad, bad, bad, *copies))) + content[end:]
    return content


def file_of(content: bytes) -> st.SearchStrategy[Content]:
    return st.one_of(*[damaged(content)] * 9, st.sampled_from(ODD))


@st.composite
def study(draw: st.DrawFn) -> Case:
    text, ending = draw(st.sampled_from(TEXTS)).encode(), draw(st.sampled_from(("", "", "", "+confirm")))
    return ["plan", f"mine.yaml{ending}"], {"mine.yaml": draw(file_of(text))}


@st.composite
def setting(draw: st.DrawFn) -> Case:
    key = st.sampled_from([*loading.dotted_keys(), "algorithm", "kl", "reward.parts.x.weight"]) | names
    wrong = st.lists(st.builds("{}={}".format, key, values), min_size=1, max_size=3)
    right = st.lists(st.builds("=".join, st.sampled_from(sorted(RIGHT))), min_size=3, max_size=8)
    changes = draw(st.sampled_from((wrong, right, right)).flatmap(lambda one: one))
    return ["plan", "small.yaml", *(part for one in changes for part in ("--set", one))], {"small.yaml": SMALL}


@st.composite
def name(draw: st.DrawFn) -> Case:
    call, two = draw(st.sampled_from(CASES["commands"])), (draw(names), draw(names))
    files: dict[str, Content] = {"small.yaml": SMALL, "a.csv": b"prompt,completion\nA,b\n"}
    return [word.format(*two) for word in call.split()], files


@st.composite
def table(draw: st.DrawFn, kind: str) -> Case:
    """A command that reads tables, each with a bad cell or column now and then, and damaged as a file."""
    call, sound = draw(st.sampled_from(sorted(CASES["tables"][kind].items())))
    suffix, files = draw(st.sampled_from(("csv", "jsonl", "parquet"))), dict[str, Content](**{"small.yaml": SMALL})
    for arm in ("a", "b")[: 2 if kind == "log" else 1]:
        rows, key = copy.deepcopy(ROWS[sound]), draw(st.sampled_from(list(ROWS[sound][0])))
        wrong, column = draw(st.sampled_from(("", "", "cell", "column", "column"))), draw(names)
        if wrong == "cell":
            draw(st.sampled_from(rows))[key] = draw(st.sampled_from(CASES["cells"]))
        elif wrong:
            rows = [{column if name == key else name: cell for name, cell in row.items()} for row in rows]
        content = b""  # where the format cannot hold the cell or name
        with TemporaryDirectory() as made, suppress(ValueError, TypeError, OverflowError, LookupError):
            content = write_table(Path(made, f"sound.{suffix}"), rows).read_bytes()
        files[f"{arm}/seed_0.{suffix}"] = draw(file_of(content))
    return call.format(f"a/seed_0.{suffix}").split(), files


@st.composite
def request(draw: st.DrawFn) -> Case:
    """A request with up to three fields wrong."""
    keys = st.sampled_from(CASES["requests"]["fields"]) | names
    fields = {"prompt": '"The acting"', "max_tokens": "12"} | draw(st.dictionaries(keys, values, max_size=3))
    text = "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in fields.items()) + "}"
    method, odd = draw(st.sampled_from(CASES["requests"]["methods"])), CASES["requests"]["odd paths"]
    path = draw(st.sampled_from(["/v1/completions"] * 9 + odd))
    return ["read", "request", method, path], {"body": draw(damaged(text.encode("utf-8", "surrogatepass")))}


KINDS: dict[str, st.SearchStrategy[Case]] = {
    "study": study(), "set": setting(), "name": name(), "request": request(),
    **{kind: table(kind) for kind in CASES["tables"]},
}  # fmt: skip
APP = copy.copy(ablate.app)
"""The commands, and one that reads as a trial or the server does."""
APP.registered_commands = list(ablate.app.registered_commands)


@APP.command("read")
@ablate.guarded
def _read(kind: str, words: list[str], out: str = "") -> None:
    """Read a table of texts or pairs, or answer the request in the file ``body``; a refusal is the user's error."""
    if kind == "texts":
        load_corpus(DataConfig.model_validate({"source": "local", "local": {"path": words[0]}}))
    elif kind == "pairs":
        read_preferences(Path(words[0]), "reward.preferences")
    else:
        headers = {"Content-Type": "application/json"}
        answer = _client().request(*words, content=Path("body").read_bytes(), headers=headers)
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
