"""A second process that draws figures: they are most of a report's time, and most machines have a second core.

It is started afresh (never forked), speaks over a pipe with the process that started it, and ends with that process,
however it ends. What it fails to draw is drawn by the first process, which then says why.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

PATIENCE = 5.0
"""Seconds to wait for the other process; not for ever, since it may be killed while it holds the lock."""
Paint = Callable[[str], Any]
"""Draws the figure of that name into its files, and returns what the page says of it."""


class Helper:
    """The second process, as the first one sees it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._taken = context.Value("i", 0)
        self._process = context.Process(target=_serve, args=(there, self._taken), daemon=True)
        self._process.start()
        there.close()

    def draw(self, names: Sequence[str], paint: Paint) -> dict[str, Any]:
        """What `paint` gives for every name, wherever it was called; `paint` is sent to the helper.

        Either process takes the next name when it is free: with the slowest first, both end at about the same time.
        """
        helping = _done(self._pipe.send, (names, paint))
        done = {name: paint(name) for name in _next(names, self._taken)}
        while helping and len(done) < len(names):
            helping = _done(self._receive, done)
        return done | {name: paint(name) for name in names if name not in done}

    def _receive(self, done: dict[str, Any]) -> None:
        name, words = self._pipe.recv()
        done[name] = words

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()


@contextmanager
def helper(wanted: bool) -> Iterator[Helper | None]:
    """A helper where it is wanted and the system lets it start; else None."""
    started = None
    if wanted:
        with suppress(OSError):
            started = Helper()
    try:
        yield started
    finally:
        if started is not None:
            started.close()


class IdleCores:
    """How many of the cores that this process may use nobody has used since this object was made."""

    def __init__(self) -> None:
        self._start = self._look()

    def beside_this_process(self) -> float:
        """Mean number of idle cores, without the one that this process runs on. Waits until 0.1 s have passed."""
        time.sleep(max(0.0, self._start[0] + 0.1 - time.monotonic()))
        elapsed, idle, own = (now - then for now, then in zip(self._look(), self._start, strict=True))
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(allowed - 1.0, (idle + own) / elapsed - 1.0)

    @staticmethod
    def _look() -> tuple[float, float, float]:
        """The time, the seconds that all cores together have been idle, and those that this process has used."""
        import psutil

        return time.monotonic(), psutil.cpu_times().idle, time.process_time()


def _done(action: Callable[[Any], None], argument: object) -> bool:
    """Do something with the pipe; False where the helper is gone."""
    try:
        action(argument)
    except (OSError, EOFError):
        return False
    return True


def _next(names: Sequence[str], taken: Any) -> Iterator[str]:
    """The names that the other process has not taken. `taken` counts those that either has."""
    count = taken.get_obj()  # without the lock, for which its own `value` would wait without end
    while True:
        free = taken.get_lock().acquire(timeout=PATIENCE)
        place, count.value = count.value, count.value + 1
        if free:
            taken.get_lock().release()
        if place >= len(names):
            return
        yield names[place]


def _serve(pipe: Connection, taken: Any) -> None:
    """The second process: draw until all is drawn, or nobody is there to ask for it. A figure that fails ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the first process, which ends this one
    gc.disable()  # nothing that it makes is thrown away
    from reports.figures.registry import import_figures

    import_figures()  # while the first process still reads its records
    with suppress(Exception):
        names, paint = pipe.recv()
        for name in _next(names, taken):
            pipe.send((name, paint(name)))
