"""What a trial hands back to whoever had it run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.run.store import Artifact


@dataclass(frozen=True)
class TrialOutcome:
    """What a trial came to; status and numbers are empty while it has not been trained."""

    artifacts: Mapping[str, Artifact]
    """By stage; those that came from a worker carry no `meta`."""
    status: str
    reason: str | None
    steps: int
    summary: Mapping[str, float]
    cost: Mapping[str, float]
    execution: Mapping[str, str]
    """On what device, and in what precision, it was trained."""
