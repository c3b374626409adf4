"""Interface by which a trial reports its progress (to a display, to MLflow, to a test) and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
