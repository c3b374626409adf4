"""Two processes draw what one would, and nothing is lost with the second."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports import helper
from reports.helper import Helper
from reports.render import render_report

if TYPE_CHECKING:
    from tests.reports.conftest import Builder

NAMES = [str(number) for number in range(12)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_two_processes_write_the_bytes_of_one(build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64, diverged=(), budget=(), missing=(), extra="figures: [win_rate, kl, cost]\n")
    alone = contents(render_report(built.folder, built.study).parent)
    monkeypatch.setattr(helper, "idle_cores", lambda: 1.0)
    helped: list[str] = []
    receive = Helper._receive
    monkeypatch.setattr(Helper, "_receive", lambda self, done: (receive(self, done), helped.extend(done))[0])
    assert contents(render_report(built.folder, built.study, second=True).parent) == alone
    assert helped, "the second process drew nothing"


def test_a_helper_that_is_killed_or_fails_is_made_up_for() -> None:
    killed = Helper()
    os.kill(killed._process.pid or 0, signal.SIGKILL)
    killed._process.join()
    assert killed.draw(NAMES, int) == {name: int(name) for name in NAMES}
    killed.close()
    failing = Helper()
    with pytest.raises(ValueError, match="invalid literal"):  # as if it had been drawn here
        failing.draw([*NAMES, "no number"], int)
    failing.close()
    assert not failing._process.is_alive()


def test_no_helper_where_no_core_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "idle_cores", lambda: 0.4)
    with helper.helper(wanted=True) as found:
        assert found is None
    with helper.helper(wanted=False) as found:
        assert found is None
