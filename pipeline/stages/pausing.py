"""What makes a trial that a cap has ended go on; imports nothing that trains."""

from __future__ import annotations

from pipeline.artifacts import Artifact
from pipeline.config import TrialConfig

KEPT = "checkpoints"
"""Where the checkpoints of a trial lie, and beside them the metrics of one that a cap has ended."""


def raised_cap(config: TrialConfig, artifact: Artifact) -> str | None:
    """Why a trial that a cap has ended goes on under this configuration, or None."""
    cap = artifact.meta.get("cap")
    if cap is None or getattr(config.caps, cap["key"]) <= cap["spent"]:
        return None
    return f"caps.{cap['key']} is {getattr(config.caps, cap['key']):g} now: continues from step {artifact.meta['steps']}"
