"""The training reward as PPO sees it: a weighted sum of parts, each calibrated on reference samples, as is their
sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor

from pipeline.rewards.base import Calibrated, Completions, standardised
from pipeline.rewards.learned_settings import Combine
from pipeline.rewards.settings import DISAGREEMENT


@dataclass(frozen=True)
class Combination:
    """How scores of members become one."""

    combine: Combine
    weight: float


@dataclass(frozen=True)
class Ensemble:
    """A `Reward` of n >= 2 members, each calibrated on reference samples before they are combined."""

    members: Sequence[Calibrated]
    rule: Combination

    def __call__(self, completions: Completions) -> Tensor:
        return self.explained(completions)[0]

    def explained(self, completions: Completions) -> tuple[Tensor, Tensor]:
        """The combined score (B,), and the standard deviation over members (B,) in units of their calibrated scores."""
        scores = torch.stack([member(completions) for member in self.members])
        return combined(scores, self.rule), disagreement(scores)

    @property
    def networks(self) -> list[Any]:
        """Of all members."""
        return [network for member in self.members for network in member.raw.networks]


def combined(scores: Tensor, rule: Combination) -> Tensor:
    """One score out of those of n members, (n, B) -> (B,), computed in fp64.

    mean_i s_i; min_i s_i; or mean_i s_i - w var_i s_i, with the variance over n (Coste 2023, eq. 3 to 5).

    >>> combined(torch.tensor([[1.0], [2.0], [6.0]]), Combination("minimum", 0.5)).tolist()
    [1.0]
    """
    exact = scores.double()
    match rule.combine:
        case "mean":
            found = exact.mean(0)
        case "minimum":
            found = exact.amin(0)
        case "uncertainty":
            found = exact.mean(0) - rule.weight * exact.var(0, correction=0)
        case _:
            assert_never(rule.combine)
    return found.float()


def disagreement(scores: Tensor) -> Tensor:
    """Standard deviation over n members, sqrt(mean_i (s_i - mean)^2); (n, B) -> (B,)."""
    return scores.double().std(0, correction=0).float()


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
        """The calibrated sum (B,) and, of more than one part, each calibrated part by name; of ensembles also their
        `DISAGREEMENT`, sqrt(sum_i (weight_i d_i)^2) of the parts' own."""
        scores, spreads = dict[str, Tensor](), list[Tensor]()
        for name, part in self.parts.items():
            if isinstance(part.raw, Ensemble):
                raw, spread = part.raw.explained(completions)
                scores[name] = standardised(raw, part.mean, part.std)
                spreads.append(self.weights[name] * spread)
            else:
                scores[name] = part(completions)
        said = scores if len(scores) > 1 else {}
        if spreads:
            said = said | {DISAGREEMENT: torch.stack(spreads).square().sum(0).sqrt()}
        return standardised(self.weigh(scores), self.mean, self.std), said

    @property
    def networks(self) -> list[Any]:
        """Of all parts."""
        return [network for part in self.parts.values() for network in part.raw.networks]

    def weigh(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Weighted sum of calibrated parts (B,)."""
        return torch.stack([self.weights[name] * score for name, score in scores.items()]).sum(0)
