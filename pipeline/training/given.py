"""What the training of a trial is given, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.models.policy import ActorCritic, Episodes


@dataclass
class Outcome:
    """How a trial ended."""

    status: str
    reason: str | None
    steps: int
    updates: int
    episodes: int
    tokens: int
    cap: dict[str, Any] | None
    """Of a trial that a cap has ended: which one, how much was spent of it, and the step of the newest checkpoint."""
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Networks:
    """What is trained, and what it is compared with."""

    actor: ActorCritic
    reference: CausalLM


@dataclass(frozen=True)
class TrainingData:
    """All training prompts, left-padded, on the CPU; n of them."""

    queries: Tensor
    """(n, P) int64."""
    query_mask: Tensor
    """(n, P) bool."""
    token_ids: dict[str, int]
    """``eos_id`` and ``pad_id``."""
    v_star: Tensor | None = None
    """(n,) float64, V* of each, where the advantage needs it."""
    pairs: Episodes | None = None
    """(2m, ...) stored pairs to learn from instead of rollouts: the preferred response of each, then the other one."""
    closes: Tensor | None = None
    """(V,) bool: the tokens that end a group, where the KL penalty is one on clauses or sentences."""
