"""What the driver and the processes that run trials tell each other: jobs one way, events the other.

A trial speaks through a `Reporter`; `EventReporter` turns its calls into messages. How they travel is the executor's
business (`studies.execution.job_folder`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.config.trial import TrialConfig
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
from pipeline.run.progress import StageState

QUIET_SECONDS = 0.25
"""Least time between two progress messages of a trial; what comes in between is dropped or merged."""
QUIET_SHARE = 0.01
"""The same as a share of the time that the trial has run, so that the messages of long trials stay few."""
QUIET_LIMIT = 5.0
"""Seconds; more than this is never dropped."""
MessageKind = Literal["stage", "progress", "metrics", "follow", "warn"]


@dataclass(frozen=True)
class Job:
    """One call of a trial function, by name so that any process can make it."""

    number: int
    """Under which the driver knows the job; another driver gives it another number."""
    label: str
    config: TrialConfig
    layout: Layout
    trial: str
    """``module:function`` with the signature of `pipeline.trial.run_trial`."""
    log: Path
    """Where output and tracebacks of the trial go."""
    folder: Path
    """Where the job and its events lie, if it runs in a process of its own."""
    until: str | None = None


@dataclass(frozen=True)
class Message:
    """One call of a `Reporter` method inside a trial."""

    job: Job
    kind: MessageKind
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Finished:
    """A trial has ended with an outcome, be it good or bad."""

    job: Job
    outcome: TrialOutcome
    adopted: bool = False
    """It was begun by an earlier driver: code or store may have changed since."""


@dataclass(frozen=True)
class Crashed:
    """A trial ended without an outcome."""

    job: Job
    reason: str
    user_error: bool = False
    """The user has to put something right; repeating would not help."""
    disk_full: bool = False
    """No space was left; no other trial would fare better."""


@dataclass(frozen=True)
class Interrupted:
    """A trial was stopped from outside. That is no fault of its own: it continues when it is run again."""

    job: Job
    reason: str


Event = Message | Finished | Crashed | Interrupted
NextJob = Callable[[], Job | None]
"""Gives the next job, or None for nothing at present: asked again after every event."""
Send = Callable[[MessageKind, tuple[Any, ...]], None]
"""Takes what makes a `Message`, but for the job."""


class EventReporter:
    """The `Reporter` of a trial: turns calls into messages and keeps frequent ones rare."""

    def __init__(
        self,
        send: Send,
        limit: float = QUIET_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No gap between messages of a trial that makes progress is longer than `limit` seconds."""
        self._send, self._limit, self._clock = send, limit, clock
        self._began = clock()
        self._progressed = self._measured = float("-inf")
        self._values: dict[str, float] = {}

    def stage(self, name: str, state: StageState, detail: str = "") -> None:
        self._send("stage", (name, state, detail))

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        now = self._clock()
        if note or done >= total or now - self._progressed >= self._gap(now):
            self._progressed = now
            self._send("progress", (stage, done, total, note))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._values.update(values)
        now = self._clock()
        if now - self._measured >= self._gap(now):
            self._measured = now
            self._send("metrics", (step, self._values))
            self._values = {}

    def follow(self, path: Path) -> None:
        self._send("follow", (path,))

    def warn(self, message: str) -> None:
        self._send("warn", (message,))

    def _gap(self, now: float) -> float:
        return max(QUIET_SECONDS, min(self._limit, QUIET_SHARE * (now - self._began)))
