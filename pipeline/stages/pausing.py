"""What makes a trial that a cap has ended go on; imports nothing that trains."""

from __future__ import annotations

from typing import Any

from pipeline.config.trial import TrialConfig
from pipeline.run.store import Artifact

KEPT = "checkpoints"
"""Where the checkpoints of a trial lie, and beside them the metrics of one that a cap has ended."""


MEMORY_KNOBS = ("micro_batch_size", "rollout_batch_size", "gradient_checkpointing", "offload_reference", "processes")
"""Of `runtime`: what changes how much memory a trial takes, and not its result."""


def ended(config: TrialConfig, cap: dict[str, Any]) -> dict[str, Any]:
    """What `raised_cap` will have to know of the cap that has ended a trial."""
    return cap | {"runtime": _memory_knobs(config)} if cap["key"] == "memory_gib" else cap


def raised_cap(config: TrialConfig, artifact: Artifact) -> str | None:
    """Why a trial that a cap has ended goes on under this configuration, or None: a larger cap, or other knobs of
    memory."""
    cap = artifact.meta.get("cap")
    if cap is None:
        return None
    goes_on, limit = f"continues from step {cap['step']}", getattr(config.caps, cap["key"])
    if limit > cap["spent"]:
        return f"caps.{cap['key']} is {limit:g} now: {goes_on}"
    before, now = cap.get("runtime", {}), _memory_knobs(config)
    changed = [f"runtime.{name} is {now[name]} now, and was {was}" for name, was in before.items() if now[name] != was]
    return f"{', '.join(changed)}: {goes_on}" if changed else None


def _memory_knobs(config: TrialConfig) -> dict[str, Any]:
    return {name: getattr(config.runtime, name) for name in MEMORY_KNOBS}
