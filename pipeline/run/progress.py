"""Interface between a trial and the processes around it: its progress, its outcome, and the request to leave
its machine within minutes, such as at a scheduler's time limit.

A trial that is to leave finishes the update at hand, writes a checkpoint and stops. A file requests it, so that the
request reaches all processes of the trial: `LEAVE` is its path in their environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.run.store import Artifact

StageState = Literal["cached", "building", "built", "damaged"]


RESUMED = "resumed"
"""The note of the first progress of a stage that goes on from a checkpoint."""


class Reporter:
    """Calls that stages make, all of them ignored here. Every call is cheap; none may change a result."""

    def stage(self, name: str, state: StageState, detail: str = "") -> None:
        """A stage was found or is being built; `detail` is the reason, or the key."""

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units of work of a stage."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics were written to the file being followed."""

    def follow(self, path: Path) -> None:
        """The metrics of this trial grow in this JSONL file (after a resume it may first have shrunk)."""

    def warn(self, message: str) -> None:
        """Something the user should know."""


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial; status and numbers are empty while it has not been trained."""

    artifacts: Mapping[str, Artifact]
    """Artifacts by stage; those that came from a worker carry no `meta`."""
    status: str
    reason: str | None
    steps: int
    summary: Mapping[str, float]
    cost: Mapping[str, float]
    execution: Mapping[str, str]
    """Device and precision of its training."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """Where the series of a trial of another program ended, by metric."""


LEAVE = "ABLATE_LEAVE"
"""Environment variable with the path of the file."""
LEFT = 75
"""Exit code, EX_TEMPFAIL of sysexits.h: the trial left after it had come further, and is to go on."""

NO_FURTHER = 76
"""Exit code: the process left, and no trial had come further."""


class Leaving(KeyboardInterrupt):
    """The trial has written its checkpoint and stops."""


@contextmanager
def can_be_asked(folder: Path) -> Iterator[None]:
    """Let this process and its children be asked to leave, by a file in a folder."""
    file = folder / f"{socket.gethostname()}-{os.getpid()}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.environ[LEAVE] = str(file)
    try:
        yield
    finally:
        del os.environ[LEAVE]
        file.unlink(missing_ok=True)


def can_leave() -> bool:
    """Return whether this process can be asked to leave."""
    return bool(os.environ.get(LEAVE))


def ask_to_leave() -> None:
    """Have the trial of this process stop at its next checkpoint."""
    with suppress(OSError):
        Path(os.environ[LEAVE]).touch()


def asked_to_leave() -> bool:
    """Return whether the trial is to stop at its next checkpoint."""
    return can_leave() and Path(os.environ[LEAVE]).exists()
