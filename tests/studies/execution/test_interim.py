"""Looks at a running study: one at a time, what they print is passed on, and none outlives the driver."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from studies.execution.interim import Interim


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    source = "import sys, time, pathlib\ntime.sleep(float(sys.argv[1]))\nprint('seen')\nsys.exit(int(sys.argv[2]))\n"
    (tmp_path / "looker.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "looker"


def wait(looks: Interim, said: list[str], n: int) -> None:
    until = time.monotonic() + 20
    while len(said) < n and time.monotonic() < until:
        looks.poll()
        time.sleep(0.02)


def test_looks_are_printed_in_turn_and_those_between_are_left_out(module: str) -> None:
    said: list[str] = []
    looks = Interim(module, ["0.3", "0"], said.append)
    for when in ("first", "second", "third"):
        looks.look(when)
    wait(looks, said, 2)
    looks.close()
    assert said == ["first: seen", "third: seen"]


def test_a_look_that_fails_is_silent(module: str) -> None:
    said: list[str] = []
    looks = Interim(module, ["0", "4"], said.append)
    looks.look("first")
    process = looks._process
    assert process is not None
    process.wait(20)
    looks.poll()
    assert said == []
    assert looks._process is None


def test_closing_ends_what_is_under_way(module: str) -> None:
    looks = Interim(module, ["60", "0"], print)
    looks.look("first")
    process = looks._process
    looks.close()
    assert process is not None
    assert process.poll() is not None


def test_without_a_module_nobody_looks() -> None:
    looks = Interim(None, [], print)
    looks.look("first")
    assert looks._process is None
