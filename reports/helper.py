"""A second process that draws figures: they are most of a report's time, and most machines have a second core.

It is started afresh (never forked), speaks over a pipe with the process that started it, and ends with that process, however it
ends. What it fails to draw is drawn by the first process, which then says why.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

AHEAD = 2
"""Figures that are handed over at a time, so that the helper need not wait while the first process draws."""

Paint = Callable[[str], Any]
"""Draws the figure of that name into its files, and returns what the page says of it."""


class Helper:
    """The second process, as the first one sees it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def draw(self, names: Sequence[str], paint: Paint) -> dict[str, Any]:
        """What `paint` gives for every name, wherever it was called; `paint` is sent to the helper."""
        waiting, sent, done = deque(names), list[str](), dict[str, Any]()
        helping = _done(self._pipe.send, paint)
        while waiting or sent:
            while helping and waiting and len(sent) < AHEAD:
                sent.append(waiting.pop())
                helping = _done(self._pipe.send, sent[-1])
            while helping and sent and (not waiting or self._pipe.poll()):
                helping = _done(self._receive, done)
                sent = [name for name in sent if name not in done]
            if not helping:
                waiting.extend(sent)
                sent.clear()
            if waiting:
                name = waiting.popleft()
                done[name] = paint(name)
        return done

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
    """A helper where it is wanted, a core is idle, and the system lets it start; else None."""
    found = None
    if wanted and idle_cores() > 0.5:
        with suppress(OSError):
            found = Helper()
    try:
        yield found
    finally:
        if found is not None:
            found.close()


def idle_cores() -> float:
    """How many cores, beside the one that this process runs on, nobody uses at the moment."""
    import psutil

    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    used = psutil.cpu_percent(interval=0.1) / 100 * (psutil.cpu_count() or 1)
    return own - 1 - used


def _done(action: Callable[[Any], None], argument: object) -> bool:
    """Do something with the pipe; False where the helper is gone."""
    try:
        action(argument)
    except (OSError, EOFError):
        return False
    return True


def _serve(pipe: Connection) -> None:
    """The second process: draw what is asked for until nobody asks any more. A figure that fails ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the first process, which ends this one
    import reports.figures  # noqa: F401  # while the first process still reads its records

    with suppress(OSError, EOFError):
        paint: Paint = pipe.recv()
        while True:
            name = pipe.recv()
            try:
                words = paint(name)
            except Exception:
                return
            pipe.send((name, words))
