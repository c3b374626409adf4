"""Two processes draw what one would, and nothing is lost with the second."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reports.figures import second_process as helper
from reports.figures.second_process import Helper, IdleCores
from reports.pages import fresh
from reports.pages.report import render_report

if TYPE_CHECKING:
    from tests.reports.conftest import Builder

NAMES = [str(number) for number in range(12)]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def politely(take: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
    """Take names in this process once the other has taken one."""

    def wait(names: Sequence[str], taken: Any) -> Iterator[str]:
        end = time.monotonic() + 60
        while not taken.value and time.monotonic() < end:
            time.sleep(0.01)
        return take(names, taken)

    return wait


def test_two_processes_write_the_bytes_of_one(build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(
        tmp_path,
        seeds=(0,),
        prompts=4,
        steps=64,
        diverged=(),
        budget=(),
        missing=(),
        extra="figures: [win_rate, kl, cost]\n",
    )
    alone = contents(render_report(built.folder, built.study).parent)
    helped: list[str] = []
    receive = Helper._receive
    monkeypatch.setattr(Helper, "_receive", lambda self, done: (receive(self, done), helped.extend(done))[0])
    monkeypatch.setattr(helper, "_next", politely(helper._next))
    with helper.helper(wanted=True) as beside:
        assert contents(render_report(built.folder, built.study, beside=beside).parent) == alone
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


def test_a_lock_that_nobody_will_release_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process leaves it that is killed while it takes a name."""
    monkeypatch.setattr(helper, "PATIENCE", 0.01)
    taken = multiprocessing.get_context("spawn").Value("i", 1)
    holder = threading.Thread(target=taken.get_lock().acquire)
    holder.start()
    holder.join()
    assert list(helper._next(NAMES, taken)) == NAMES[1:]


def test_no_helper_where_no_core_is_idle(build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(
        tmp_path, seeds=(0,), prompts=4, steps=64, diverged=(), budget=(), missing=(), extra="figures: [win_rate]\n"
    )
    wanted: list[bool] = []

    @contextmanager
    def note(asked: bool) -> Iterator[None]:
        wanted.append(asked)
        yield None

    monkeypatch.setattr(fresh, "helper", note)
    for idle in (0.4, 1.0):
        monkeypatch.setattr(IdleCores, "beside_this_process", lambda self, idle=idle: idle)
        fresh.current_report(built.folder, built.study, second=True)
        (built.folder.path / fresh.STAMP).unlink()
    assert wanted == [False, True]
    with helper.helper(wanted=False) as found:
        assert found is None


def test_idle_cores_are_those_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three cores, this process uses one, and others half a core."""
    looks = iter([(0.0, 100.0, 5.0), (10.0, 115.0, 15.0)])
    monkeypatch.setattr(IdleCores, "_look", staticmethod(lambda: next(looks)))
    monkeypatch.setattr(helper.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert IdleCores().beside_this_process() == pytest.approx(1.5)


def test_this_process_alone_leaves_no_more_cores_than_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(0.0, 100.0, 5.0), (10.0, 175.0, 10.0)])
    monkeypatch.setattr(IdleCores, "_look", staticmethod(lambda: next(looks)))
    monkeypatch.setattr(helper.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert IdleCores().beside_this_process() == 1.0
