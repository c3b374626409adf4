"""Bad studies, settings, names and files are accepted, or refused in few words, and nothing else happens."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import chdir, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fuzz.cases import KINDS, ODD, OUT
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import ablate
from pipeline.errors import USER_ERROR, UserError

MOST_LINES, SECONDS = 5, 40
"""Lines on standard error, and seconds of a case, at most."""
OBEYED = re.compile(r"(?![\n\t])[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing them."""


def read_texts(path: str, out: str = OUT) -> None:
    from pipeline.data.corpus import load_corpus
    from pipeline.data.settings import DataConfig

    load_corpus(DataConfig.model_validate({"source": "local", "local": {"path": path}}))


def read_preferences(path: str, out: str = OUT) -> None:
    from pipeline.data.corpus import read_preferences

    read_preferences(Path(path), "reward.preferences")


def ask_server(method: str, path: str) -> None:
    """Send the file ``body``; a refusal of the server is one of the user's errors."""
    headers = {"Content-Type": "application/json"}
    answer = _client().request(method, path, content=Path("body").read_bytes(), headers=headers)
    if answer.status_code >= 500:
        raise RuntimeError(f"status {answer.status_code}: {answer.text[:300]}")
    if answer.status_code >= 400:
        raise UserError(str(answer.json()["error"]["message"]))


@cache
def _client() -> Any:
    from starlette.testclient import TestClient
    from tiny_service import Tiny

    from studies.serving.app import create_app

    return TestClient(create_app(Tiny().server, ["testserver"]), raise_server_exceptions=False).__enter__()


@pytest.fixture(scope="module", autouse=True)
def _commands() -> Iterator[None]:
    """Commands that read a file as a trial does."""

    def late(*_: Any) -> None:
        raise TimeoutError("hang")

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("studies.definition.authoring.write_schema", lambda: None)
        changed.setattr(ablate.app, "registered_commands", list(ablate.app.registered_commands))
        changed.delenv("ABLATE_HOME", raising=False)
        before = signal.signal(signal.SIGALRM, late)
        for function in (read_texts, read_preferences, ask_server):
            ablate.app.command(function.__name__.replace("_", "-"))(ablate.guarded(function))
        yield
        signal.signal(signal.SIGALRM, before)


def broken(done: Any) -> str:
    """Return the promise that a command broke; empty where it broke none."""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"traceback: {type(done.exception).__name__}: {done.exception}"
    if done.exit_code not in (0, USER_ERROR):
        log = re.search(r"details: (\S.*)", done.stderr)
        return f"traceback: {Path(log[1].strip()).read_text('utf-8', 'replace')[-1500:] if log else done.stderr}"
    if obeyed := OBEYED.findall(done.stderr + done.stdout):
        return f"control character: {obeyed} in {(done.stderr + done.stdout)[:300]!r}"
    if done.exit_code and not done.stderr.strip():
        return "silent"
    lines = done.stderr.rstrip("\n").count("\n") + 1
    return f"lines: {lines}: {done.stderr[:300]}" if done.exit_code and lines > MOST_LINES else ""


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", KINDS)
@settings.get_profile("fuzz")
@given(data=st.data())
def test_a_case_is_accepted_or_refused_in_few_words(kind: str, data: st.DataObject) -> None:
    case = data.draw(KINDS[kind])
    with TemporaryDirectory(prefix="ablate-fuzz-", ignore_cleanup_errors=True) as made, chdir(made):
        for name, content in case.files.items():
            path = Path(made, name)
            with suppress(OSError, ValueError):  # no file can have this name
                path.parent.mkdir(parents=True, exist_ok=True)
                ODD[content](path) if isinstance(content, str) else path.write_bytes(content)
        there = {*(path.name for path in Path(made).iterdir()), OUT, *case.writes}
        signal.alarm(SECONDS)
        try:
            done = CliRunner().invoke(ablate.app, list(case.arguments))
        finally:
            signal.alarm(0)
        event("refused" if done.exit_code else "accepted")
        assert not broken(done)
        assert there >= {path.name for path in Path(made).iterdir()}, "files outside of the output root"
