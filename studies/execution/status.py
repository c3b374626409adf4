"""The status of a running trial: one small file, replaced about once a second, that any machine can read."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.run.layout import write_atomic
from pipeline.run.progress import RESUMED, Reporter, StageState

WRITE_SECONDS = 1.0
"""Least time between two writes, but for the ends of stages."""


@dataclass
class Status:
    """The progress of a process with a trial, or with the stages that trials share."""

    label: str
    host: str
    pid: int
    began: float
    """Unix time [s]."""
    lock: str = ""
    """Name of the lock that is held while the process works."""
    shared: bool = False
    """True where it builds stages that trials share."""
    stages: dict[str, list[Any]] = field(default_factory=dict)
    """Stage -> state, detail, and seconds that it took."""
    stage: str = ""
    done: int = 0
    total: int = 0
    resumed: int = 0
    """Step at which the training went on from a checkpoint."""
    values: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    metrics: str = ""
    """Path of the growing metrics file."""
    warnings: list[str] = field(default_factory=list)
    outcome: str = ""
    """Status of the trial when it has ended."""
    reason: str = ""
    """Reason why it ended, or why the process did."""
    seconds: float = 0.0
    """Seconds since the process began."""


def read_status(path: Path) -> Status | None:
    """The last status of a trial, or None where there is none."""
    with suppress(OSError, ValueError, TypeError):
        return Status(**json.loads(path.read_text("utf-8")))
    return None


class StatusFile(Reporter):
    """Keeps a trial's status file."""

    def __init__(
        self, path: Path, label: str, shared: bool, notify: Callable[[], None] = lambda: None, lock: str = ""
    ) -> None:
        """Call `notify` after each write."""
        self._path, self._notify, self._written = path, notify, 0.0
        self._stage_began = time.monotonic()
        self.status = Status(label, socket.gethostname(), os.getpid(), time.time(), lock, shared)
        self._write()

    def stage(self, name: str, state: StageState, detail: str = "") -> None:
        if state == "building":
            self._stage_began = time.monotonic()
            self.status.stage, self.status.done, self.status.total = name, 0, 0
        took = time.monotonic() - self._stage_began if state == "built" else 0.0
        self.status.stages[name] = [state, detail, round(took, 1)]
        self._write()

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        self.status.stage, self.status.done, self.status.total = stage, done, total
        if note == RESUMED:
            self.status.resumed = done
        self._write_now_and_then()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.status.values |= values
        self._write_now_and_then()

    def follow(self, path: Path) -> None:
        self.status.metrics = str(path)
        self._write()

    def warn(self, message: str) -> None:
        self.status.warnings.append(message)
        self._write()

    def end(self, outcome: str, reason: str | None = None) -> None:
        """Write the last status; a full disk keeps it from nothing."""
        self.status.outcome, self.status.reason = outcome, reason or ""
        with suppress(OSError):
            self._write()

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        self.status.seconds = round(time.time() - self.status.began, 1)
        write_atomic(self._path, json.dumps(asdict(self.status)))
        self._written = time.monotonic()
        self._notify()
