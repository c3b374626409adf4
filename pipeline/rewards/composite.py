"""The training reward that PPO gets: a weighted sum of parts, each calibrated on reference samples, as is their
sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.rewards.base import Calibrated, Completions, standardised


@dataclass(frozen=True)
class Proxy:
    """``(sum_i weight_i part_i(x) - mean) / std``. A reward of one kind is a single part of weight 1.

    Each part has mean 0 and standard deviation 1 on reference samples before it is weighed, so that weights compare
    like with like; the sum is calibrated again, so that a beta means the same whatever the parts.
    """

    parts: Mapping[str, Calibrated]
    weights: Mapping[str, float]
    mean: float = 0.0
    std: float = 1.0

    def __call__(self, completions: Completions) -> Tensor:
        """(B,) float32 on the CPU."""
        return self.explained(completions)[0]

    def explained(self, completions: Completions) -> tuple[Tensor, dict[str, Tensor]]:
        """The calibrated sum (B,) and, of more than one part, each calibrated part by name."""
        scores = {name: part(completions) for name, part in self.parts.items()}
        return standardised(self.weigh(scores), self.mean, self.std), scores if len(scores) > 1 else {}

    @property
    def networks(self) -> list[Any]:
        """Networks of all parts."""
        return [network for part in self.parts.values() for network in part.raw.networks]

    def weigh(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Weighted sum of calibrated parts (B,)."""
        return torch.stack([self.weights[name] * score for name, score in scores.items()]).sum(0)
