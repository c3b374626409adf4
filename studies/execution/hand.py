"""A hand: takes tasks of a study as long as there are any, each in a child process, so that a crash, a full memory or a
hang takes one task with it and no more. Any number of hands work on a study, on any machines that share its folder."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_all_start_methods, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.errors import INTERRUPTED, USER_ERROR, Fault, UserError
from pipeline.resources.machine import MALLOC, grow_segments, visible_gpus
from pipeline.run.progress import LEFT
from pipeline.run.store import try_lock
from studies.execution.agenda import DEATHS, Agenda, Task
from studies.execution.child import DISK_FULL, run_task, work
from studies.execution.started import Started
from studies.execution.status import read_status
from studies.faults import DiskFull, disk_full

LOOK_SECONDS = 0.3
"""Seconds between two looks for a task while other hands have all that is ready."""
GRACE_SECONDS = 5.0
"""Seconds that a child may take to end after its signal."""
STARTS = 3
"""Times that a child is tried to be started: the server that forks it can be killed."""
Say = Callable[[str, str], None]
"""Takes a line for the user, and its style."""


class Gpus:
    """The cards that this hand holds, each apart from all other hands of this machine, and the processes on each."""

    def __init__(self) -> None:
        self._locks: list[FileLock] = []
        self._used: Counter[str] = Counter()

    def hold(self, count: int, needed: int) -> bool:
        """Hold up to `count` free cards in all; False where this hand then has fewer than `needed`."""
        for name in visible_gpus():
            if len(self._used) < count and name not in self._used and (lock := try_lock(_file(name))) is not None:
                self._locks.append(lock)
                self._used[name] = 0
        return len(self._used) >= needed

    def take(self, count: int) -> list[str]:
        """The `count` least used of these cards."""
        taken = sorted(self._used, key=self._used.__getitem__)[:count]
        self._used.update(taken)
        return taken

    def give_back(self, names: list[str]) -> None:
        """End the use of some cards."""
        self._used.subtract(names)


def _file(name: str) -> Path:
    return Path.home() / ".cache" / "ablate" / f"{socket.gethostname()}-gpu-{name.replace('/', '_')}"


@dataclass(frozen=True)
class _Child:
    process: BaseProcess
    task: Task
    lock: FileLock
    gpus: list[str]
    deadline: float
    """The time at which it is killed, far beyond its wall-clock cap (`time.monotonic`)."""


class Hands:
    """Workers on a study for this command: in this process, its children, or jobs of a cluster."""

    on_status: Callable[[], None] = staticmethod(lambda: None)
    """Called whenever a trial that runs in this process has written its status."""

    def step(self) -> bool:
        """Handle tasks that have ended and start those that can start. False when no trial of the study is left.

        Raises `UserError` and `Fault` for what would stop every other trial as well.
        """
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Wait until there may be something to do, at most so long."""
        time.sleep(seconds)

    def close(self) -> None:
        """End all tasks that cannot go on without this process."""


class Hand(Hands):
    """Hands with at most `slots` children at once."""

    def __init__(self, run: Started, agenda: Agenda, slots: int, say: Say, *, share_gpus: bool = True) -> None:
        """`share_gpus`: hold cards against other commands on this machine; a scheduler does that itself."""
        grow_segments()  # before any process of ours imports torch
        if all(cell.config.runtime.device == "cpu" for cell in run.cells()):
            for name, value in MALLOC.items():  # read when a process begins, and inherited from this one
                os.environ.setdefault(name, value)
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        self._context: Any = get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(["studies.execution.child", run.trials, *run.module.PRELOAD])
        self._run, self._agenda, self._slots, self._say = run, agenda, slots, say
        self._gpus = Gpus() if share_gpus else None
        self._children: list[_Child] = []
        self._looked = float("-inf")
        self.leaving = False
        """Takes no further task."""
        self.advanced = False
        """A task has ended, or has left a checkpoint."""

    @property
    def busy(self) -> bool:
        """Return whether a child runs."""
        return bool(self._children)

    def step(self) -> bool:
        ended = [child for child in self._children if not child.process.is_alive()]
        for child in ended:
            self._children.remove(child)
            self._end_of(child)
        for child in self._children:
            if time.monotonic() > child.deadline:
                _kill(child.process)
        if ended or time.monotonic() - self._looked > LOOK_SECONDS:
            while not self.leaving and len(self._children) < self._slots and (taken := self._agenda.next()) is not None:
                if not self._begin(*taken):
                    break
            self._looked = time.monotonic()
        return self.busy or self._agenda.is_left()

    def wait(self, seconds: float) -> None:
        if self._children:
            connection.wait([child.process.sentinel for child in self._children], timeout=seconds)
        else:
            super().wait(seconds)

    def close(self) -> None:
        """End all children: by SIGTERM, at last by SIGKILL."""
        for child in self._children:
            child.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
            child.lock.release()
        self._children.clear()

    def _begin(self, task: Task, lock: FileLock) -> bool:
        """Start a child; False where its cards are held by others."""
        runtime, gpus = task.cell.config.runtime, list[str]()
        if self._gpus is not None and runtime.device != "cpu" and visible_gpus():
            if not self._gpus.hold(self._slots * runtime.processes, runtime.processes):
                lock.release()
                return False
            gpus = self._gpus.take(runtime.processes)
        for left in reversed(range(STARTS)):
            process: BaseProcess = self._context.Process(target=work, args=(task, ",".join(gpus)), name=task.label)
            try:
                process.start()
                break
            except (EOFError, ConnectionError):
                if not left:
                    raise
        self._children.append(_Child(process, task, lock, gpus, time.monotonic() + _longest(task)))
        return True

    def _end_of(self, child: _Child) -> None:
        if self._gpus is not None:
            self._gpus.give_back(child.gpus)
        self.advanced |= child.process.exitcode == 0 or (child.process.exitcode == LEFT and self.leaving)
        try:
            settle(self._agenda, child.task, child.process.exitcode, self._say)
        finally:
            child.lock.release()


class Inline(Hand):
    """Runs each task in this process: for debuggers, and where processes cannot be started."""

    def __init__(self, run: Started, agenda: Agenda, say: Say) -> None:
        super().__init__(run, agenda, 1, say)

    def _begin(self, task: Task, lock: FileLock) -> bool:
        try:
            settle(self._agenda, task, run_task(task, self.on_status), self._say)
        finally:
            lock.release()
        return True


def settle(agenda: Agenda, task: Task, code: int | None, say: Say) -> None:
    """Act on the exit code of a task's process.

    Raises `UserError` for what the user has to put right, `DiskFull`, and `Fault` for shared stages that were given up.
    """
    if code in (0, LEFT, INTERRUPTED):
        return
    run = task.run
    status = read_status(run.folder.status_file(task.name))
    reason = status.reason if status is not None and code is not None and code > 0 else ""
    if code == USER_ERROR:
        raise UserError(f"{task.label}: {reason}")
    if code == DISK_FULL:
        raise DiskFull(reason or str(disk_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))))
    reason = reason or _in_words(code)
    log = run.folder.log_file(task.name)
    details = f"; details: {log}" if log.exists() else ""
    say(f"{task.label}: {reason}", "red")
    if not agenda.note_death(task, reason):
        say(f"{task.label}: tried again{details}", "yellow")
    elif task.until is None:
        say(f"{task.label}: given up after {DEATHS} attempts{details}", "red")
    else:
        raise Fault(f"{task.label} failed: {reason}{details}")


def _longest(task: Task) -> float:
    """Seconds after which a child is killed, with an hour for work outside the training's cap."""
    return 2 * 3600 * task.cell.config.caps.wall_clock_h + 3600


def _kill(process: BaseProcess) -> None:
    """SIGABRT has the process write the traceback of every thread into its log."""
    with suppress(ProcessLookupError):
        os.kill(int(process.pid or 0), signal.SIGABRT)
    process.join(GRACE_SECONDS)
    process.kill()


def _in_words(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            hint = " (often: out of memory)" if -code == signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{hint}"
    return f"the process ended with exit code {code} and no result"
