"""Interface by which a running trial reports its progress: to a display, to MLflow, to a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

StageState = Literal["cached", "building", "built", "damaged"]


RESUMED = "resumed"
"""The note of the first progress of a stage that goes on from a checkpoint."""


class Reporter(Protocol):
    """Calls that stages make. Every call is cheap and may be ignored; none may change a result."""

    def stage(self, name: str, state: StageState, detail: str = "") -> None:
        """A stage was found or is being built; `detail` says why, or which key."""

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units of work of a stage."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics were written to the file being followed."""

    def follow(self, path: Path) -> None:
        """The metrics of this trial grow in this JSONL file (after a resume it may first have shrunk)."""

    def warn(self, message: str) -> None:
        """Something the user should know."""


class Silent:
    """A reporter that ignores everything."""

    def stage(self, name: str, state: StageState, detail: str = "") -> None: ...

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def follow(self, path: Path) -> None: ...

    def warn(self, message: str) -> None: ...
