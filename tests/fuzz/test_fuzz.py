"""Bad studies, profiles, settings, names and files are accepted, or refused in few words, and nothing else happens; and
the judge of the cases sees every kind of fault."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from fuzz.kinds import KINDS, prepare
from fuzz.worker import Case, Worker
from hypothesis import event, given, settings
from hypothesis import strategies as st

import ablate
from pipeline.errors import UserError

Act = Callable[[], object]


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("studies.definition.template.write_schema", lambda: None)
        patch.setattr(ablate.app, "registered_commands", list(ablate.app.registered_commands))
        prepare()
        yield


@pytest.fixture(scope="module")
def worker(_prepared: None) -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.end()


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", KINDS)
@settings.get_profile("fuzz")
@given(data=st.data())
def test_a_case_is_accepted_or_refused_in_few_words(kind: str, worker: Worker, data: st.DataObject) -> None:
    code, fault = worker.fault(data.draw(KINDS[kind]))
    event(fault.partition(":")[0] or ("refused" if code else "accepted"))
    assert not fault


def refuse() -> None:
    raise UserError("seeds: none is given")


def fail() -> None:
    raise RuntimeError("planted")


def spin() -> None:
    while True:
        pass


def say(text: str, code: int = 0) -> Act:
    def act() -> None:
        print(text, file=sys.stderr)
        raise typer.Exit(code)

    return act


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (refuse, ""),
        (fail, "traceback"),
        (spin, "hang"),
        (lambda: time.sleep(60), "hang"),
        (lambda: sys.stdout.write("\x1b[2J"), "control character"),
        (say("\x07"), "control character"),
        (say("\u202e", 2), "control character"),
        (say("1\n2\n3\n4\n5\n6", 2), "lines"),
        (say("1\n2\n3\n4\n5", 2), ""),
        (say("", 2), "silent"),
        (say("no verdict", 3), "code"),
        (lambda: Path("strange.txt").touch(), "outside"),
        (lambda: Path("../ablate-fuzz-planted.txt").touch(), "outside"),
        (lambda: Path("expected.txt").touch(), ""),
        (lambda: bytearray(16 * 2**30), "traceback"),
        (lambda: os._exit(0), "crash"),
    ],
)
def test_the_judge_sees_what_was_planted(act: Act, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.worker.WALL_SECONDS", 2.0)
    monkeypatch.setattr(ablate.app, "registered_commands", list(ablate.app.registered_commands))
    ablate.app.command("planted")(ablate.guarded(lambda out="out": act() and None))
    worker = Worker(0.5 if act is spin else 5.0)
    try:
        assert worker.fault(Case(("planted",), {}, ("expected.txt",)))[1].partition(":")[0] == fault
    finally:
        worker.end()
