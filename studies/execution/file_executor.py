"""Runs jobs in workers that it speaks to through folders alone. Where a worker runs is the business of a `Launcher`.

A worker that outlives its driver is taken over by the next one: a job that is found in the study folder is carried on
if it is the job that is wanted and a worker has it, or has ended it. The folder of any other job is deleted, and its
trial continues from its checkpoint in a new worker; a worker that still has it open stops.

What the launcher says and what lies in the folder, together:

    a result, or a crash            the job has ended, whatever the launcher says
    "interrupted" in the folder     ended when the launcher says `Ended`; until then a queue may start it again
    "queued"                        nothing is expected of the worker
    "running"                       progress within `runtime.hang_minutes`, else the worker is ended
    "unknown"                       as "running" while the lock is held or `alive` is renewed, then as `Ended`
    `Ended`                         as "running" while the lock is held; after `Launcher.lag_seconds` it counts
    `Ended(lost=True)`              the job is started again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from pipeline.errors import Damaged, UserError
from studies.execution.job_folder import HEARTBEAT_SECONDS, PULSES, EventReader, JobFile, JobFolder
from studies.execution.jobs import Crashed, Event, Finished, Interrupted, Job, Message, NextJob

POLL_SECONDS = 0.2
"""Between two looks at the folders."""
LOSSES = 3
"""So often in a row a worker may be lost before its trial makes progress."""
POLL_SHARE, POLL_LIMIT = 0.04, 0.8
"""With many jobs the looks are rarer: of a core's time they take this share, unless a look were that late (seconds)."""
GRACE_SECONDS = 5.0
"""How long a worker may take to end when it is told to."""


@dataclass(frozen=True)
class Ended:
    """A worker is no more; `reason` counts where it left no outcome."""

    reason: str
    interrupted: bool = False
    """Somebody ended it on purpose: no fault of the trial."""
    disk_full: bool = False
    lost: bool = False
    """Its machine was taken away, or its time was up: the trial goes on in a new worker."""


WorkerState = Literal["queued", "running", "unknown"] | Ended


class Launcher(Protocol):
    """Starts workers somewhere and knows them by names, which later drivers find in the job's folder."""

    outlives: bool
    """Whether workers go on when the driver ends."""
    lag_seconds: float
    """How long what a worker wrote may take to be read here after the worker is known to have ended."""

    def start(self, job: Job, folder: JobFolder) -> str:
        """Write the job (`JobFolder.create`), start ``python -m studies.execution.worker FOLDER``, return a name. A
        fault ends the study: of one that passes, try again."""

    def state(self, name: str) -> WorkerState:
        """Of a worker, also one that another driver started. "unknown" for a name that is not known, "queued" for one
        that was just started and is not known yet. A fault that passes is not told: say what was last known."""

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Until one of the workers may have ended, at most so long."""

    def end(self, names: Sequence[str], *, hung: bool = False) -> None:
        """End workers and wait until they have; of one that hung, have the log say where it stood."""

    def forget(self, name: str) -> None:
        """The job of this worker has ended, and so will the worker: what was set aside for it is free."""


@dataclass
class _Running:
    """A job that a worker has."""

    job: Job
    folder: JobFolder
    name: str
    adopted: bool
    reader: EventReader
    heard: float = field(default_factory=time.monotonic)
    pulse: int = 0
    felt: float = field(default_factory=time.monotonic)
    caught_up: bool = False
    ended: float | None = None
    """Since when the worker is known to have ended."""
    losses: int = 0
    """In a row, without progress in between."""

    def read(self) -> list[Message]:
        """New events."""
        fresh = self.adopted and not self.caught_up
        messages = self.reader.catch_up(self.job) if fresh else self.reader.read(self.job)
        self.caught_up = True
        if messages:
            self.heard = time.monotonic()
        if any(message.kind == "progress" for message in messages):
            self.losses = 0
        return messages

    def go_on_in(self, name: str) -> None:
        """Expect the same of a new worker."""
        self.name, self.adopted, self.ended, self.heard = name, False, None, time.monotonic()
        self.reader = EventReader(self.folder.events_file, followed=self.reader.followed)

    def has_pulse(self) -> bool:
        """Whether a worker on another machine has renewed ``alive`` of late."""
        pulse = self.folder.pulse()
        if pulse != self.pulse:
            self.pulse, self.felt = pulse, time.monotonic()
        return self.folder.is_elsewhere and time.monotonic() - self.felt < PULSES * HEARTBEAT_SECONDS

    @property
    def is_silent(self) -> bool:
        """Whether the trial has made no progress for longer than it may."""
        return time.monotonic() - self.heard > self.job.config.runtime.hang_minutes * 60


class FileExecutor:
    """The executor of a launcher."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        """Have at most `slots` jobs at once. Without its driver a worker ends, unless the launcher's outlive it."""
        running, busy = list[_Running](), 0.0
        try:
            while True:
                while len(running) < slots and (job := next_job()) is not None:
                    running.append(self._begin(job))
                if not running:
                    return
                self.launcher.wait([one.name for one in running], max(POLL_SECONDS, min(busy / POLL_SHARE, POLL_LIMIT)))
                began = time.thread_time()
                for one in running[:]:
                    self._look(one, running, emit)
                busy = time.thread_time() - began
        finally:
            if not self.launcher.outlives:
                self.launcher.end([one.name for one in running])
                for one in running:
                    one.folder.remove()

    def _look(self, one: _Running, running: list[_Running], emit: Callable[[Event], None]) -> None:
        """Pass on what is new of a job. The folder of one that has ended goes when the driver has dealt with it."""
        for event in self._news(one):
            if not isinstance(event, Message):
                running.remove(one)
                self._bury(one)
            emit(event)
            if not isinstance(event, Message):
                one.folder.remove()

    def _begin(self, job: Job) -> _Running:
        folder = JobFolder(job.folder)
        name, adopted = self._found(job, folder), True
        if name is None:
            name, adopted = self._start(job, folder), False
        return _Running(job, folder, name, adopted, EventReader(folder.events_file))

    def _start(self, job: Job, folder: JobFolder) -> str:
        folder.remove()
        name = self.launcher.start(job, folder)
        if self.launcher.outlives:
            folder.name_worker(name)
        return name

    def _found(self, job: Job, folder: JobFolder) -> str | None:
        """The name of the worker that an earlier driver started for this very job; None where there is none, and nobody
        works in the folder. Raises `UserError`."""
        folder.refresh()
        if not folder.path.exists():
            return None
        name, written = folder.worker, _job_in(folder)
        wanted = written is not None and written.is_for(job)
        if wanted and isinstance(folder.outcome(job), Finished):
            return name
        if not self._is_live(folder, name, written):
            return None
        if wanted and written is not None and written.outlives and folder.cancelled() is None:
            return name
        self._end_other(folder, name, written)
        return None

    def _is_live(self, folder: JobFolder, name: str, written: JobFile | None) -> bool:
        state = self.launcher.state(name)
        if state in ("queued", "running") or folder.is_held():
            return True
        return state == "unknown" and self._is_beating(folder, written)

    @staticmethod
    def _is_beating(folder: JobFolder, written: JobFile | None) -> bool:
        return written is not None and written.outlives and folder.is_beating()

    def _end_other(self, folder: JobFolder, name: str, written: JobFile | None) -> None:
        """End the worker of another job, or one whose driver has just died."""
        folder.cancel("another driver has other use for its folder")
        self.launcher.end([name])
        deadline = time.monotonic() + GRACE_SECONDS
        while self._is_live(folder, name, written):
            if time.monotonic() > deadline:
                host, pid = folder.worker_process
                raise UserError(
                    f"{folder.path} is still being worked on by process {pid} on {host or 'another host'}, which was"
                    " told to stop; run the same command again in a minute, or end that process"
                )
            time.sleep(POLL_SECONDS / 4)

    def _news(self, one: _Running) -> Iterator[Event]:
        state = self._state(one)  # first: what a worker wrote before it ended is found below
        if isinstance(state, Ended):
            one.folder.refresh()
        yield from one.read()
        end = one.folder.outcome(one.job)
        if isinstance(end, Finished | Crashed):
            yield from one.read()
            yield replace(end, adopted=one.adopted) if isinstance(end, Finished) else end
        elif isinstance(state, Ended):
            yield from self._end_of(one, state, end)
        elif state == "queued":
            one.heard = time.monotonic()
        elif one.is_silent:
            began = one.folder.pulse() != 0
            self.launcher.end([one.name], hung=True)
            yield Crashed(one.job, _silence(one, began))

    def _end_of(self, one: _Running, state: Ended, end: Interrupted | None) -> Iterator[Event]:
        """What follows from the end of a worker that left no result."""
        one.ended = one.ended or time.monotonic()
        if end is None and time.monotonic() - one.ended < self.launcher.lag_seconds:
            return
        if state.lost and one.losses < LOSSES:
            one.losses += 1
            yield Message(one.job, "warn", (f"{state.reason}; it goes on in a new worker",))
            one.go_on_in(self._again(one))
        elif state.lost:
            yield Crashed(one.job, f"{state.reason}, {LOSSES + 1} times before it made progress")
        elif end is not None or state.interrupted:
            yield Interrupted(one.job, end.reason if end is not None and not state.interrupted else state.reason)
        else:
            yield Crashed(one.job, state.reason, disk_full=state.disk_full)

    def _again(self, one: _Running) -> str:
        self.launcher.forget(one.name)
        return self._start(one.job, one.folder)

    def _state(self, one: _Running) -> WorkerState:
        """Of the worker that has the job, which need not be the one that this driver started, or knows of."""
        state = self.launcher.state(one.name)
        if state in ("queued", "running"):
            return state
        if one.folder.is_held():
            one.ended = None
            return "running"
        if state == "unknown":
            return "running" if one.has_pulse() else Ended("its worker has ended without a result")
        return state

    def _bury(self, one: _Running) -> None:
        self.launcher.forget(one.name)
        with suppress(OSError):
            if one.job.log.stat().st_size == 0:
                one.job.log.unlink()


def _silence(one: _Running, began: bool) -> str:
    minutes = one.job.config.runtime.hang_minutes
    said = f"no progress for {minutes:g} min (runtime.hang_minutes): ended"
    return said if began else f"{said}; the worker has never opened {one.folder.path}: can its machine see this path?"


def _job_in(folder: JobFolder) -> JobFile | None:
    """The job in a folder, None where it cannot be read. Raises `UserError` for one of a newer program."""
    with suppress(Damaged):
        return folder.read()
    return None
