"""A few cases of each kind, and that the judge of the cases can tell a fault when it sees one."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from fuzz.kinds import KINDS, prepare
from fuzz.oracle import Case
from fuzz.worker import made, outcomes

import ablate
from pipeline.errors import UserError

CASES = 6
Act = Callable[[], None]


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.config.loading.PROFILES", Path(str(ablate.__file__)).parent / "pipeline" / "profiles")
        patch.setattr("studies.definition.template.write_schema", lambda: None)
        commands = list(ablate.app.registered_commands)
        prepare()
        yield
        ablate.app.registered_commands[:] = commands


def fault_of(act: Act, cpu_seconds: float = 5.0) -> str:
    """What the judge calls a command that does `act`."""
    before = list(ablate.app.registered_commands)
    ablate.app.command("planted")(ablate.guarded(lambda out="out": act()))
    try:
        makers = {"planted": lambda rng, folder: Case(("planted",), ("expected.txt",))}
        [(_, _, outcome)] = outcomes(makers, [("planted", 0)], 0, cpu_seconds)
    finally:
        ablate.app.registered_commands[:] = before
    return outcome.fault


def refuse(text: str) -> Act:
    def act() -> None:
        raise UserError(text)

    return act


def fail() -> None:
    raise RuntimeError("planted")


def spin() -> None:
    while True:
        pass


def write(name: str) -> Act:
    return lambda: Path(name).write_text("x") and None


def say(text: str, code: int = 0) -> Act:
    def act() -> None:
        print(text, file=sys.stderr)
        raise typer.Exit(code)

    return act


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (refuse("seeds: none is given"), ""),
        (fail, "traceback"),
        (spin, "hang"),
        (lambda: sys.stdout.write("\x1b[2J"), "control character"),
        (say("\x07"), "control character"),
        (say("\u202e", 2), "control character"),
        (say("1\n2\n3\n4\n5\n6", 2), "lines"),
        (say("1\n2\n3\n4\n5", 2), ""),
        (say("", 2), "silent"),
        (say("no verdict", 3), "code"),
        (write("strange.txt"), "outside"),
        (write("/tmp/ablate-fuzz-planted.txt"), "outside"),
        (write("expected.txt"), ""),
        (lambda: bytearray(16 * 2**30), "traceback"),
        (lambda: os._exit(0), "crash"),
    ],
)
def test_the_judge_sees_what_was_planted(act: Act, fault: str) -> None:
    try:
        assert fault_of(act, 0.5 if act is spin else 5.0) == fault
    finally:
        Path("/tmp/ablate-fuzz-planted.txt").unlink(missing_ok=True)


def test_a_case_that_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.worker.WALL_SECONDS", 1.0)
    assert fault_of(lambda: time.sleep(60)) == "hang"


@pytest.mark.parametrize("kind", KINDS)
def test_cases_of_every_kind_are_accepted_or_refused_in_few_words(kind: str) -> None:
    labels = [(kind, number) for number in range(CASES)]
    wrong = [(label, outcome) for label, _, outcome in outcomes(KINDS, labels, 1) if outcome.fault]
    assert not wrong


def test_a_case_of_a_seed_is_always_the_same(tmp_path: Path) -> None:
    def content(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        case = made(KINDS["study"], "study", 3, 0, tmp_path / name)
        found.append((case.arguments, content(tmp_path / name)))
    assert found[0] == found[1]
    assert random.Random("0/study/3").random() != random.Random("0/study/4").random()
