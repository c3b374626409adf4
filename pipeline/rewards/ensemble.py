"""Several reward models that score together, which a policy cannot fool all at once (Coste 2023, arXiv 2310.02743)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor

from pipeline.rewards.base import Calibrated, Completions
from pipeline.rewards.learned_settings import Combine


@dataclass(frozen=True)
class Rule:
    """How scores of members become one."""

    combine: Combine
    k: int
    weight: float


@dataclass(frozen=True)
class Ensemble:
    """A `Reward` of n >= 2 members, each calibrated on reference samples before they are combined."""

    members: Sequence[Calibrated]
    rule: Rule

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


def combined(scores: Tensor, rule: Rule) -> Tensor:
    """One score out of those of n members, (n, B) -> (B,), computed in fp64.

    mean_i s_i; min_i s_i; the mean of the k lowest s_i; or mean_i s_i - w var_i s_i, with the variance over n
    (Coste 2023, eq. 3 to 5; the mean of the k lowest lies between its mean and its minimum).

    >>> combined(torch.tensor([[1.0], [2.0], [6.0]]), Rule("worst_k", 2, 0.5)).tolist()
    [1.5]
    """
    exact = scores.double()
    match rule.combine:
        case "mean":
            found = exact.mean(0)
        case "minimum":
            found = exact.amin(0)
        case "worst_k":
            found = exact.sort(0).values[: rule.k].mean(0)
        case "uncertainty":
            found = exact.mean(0) - rule.weight * exact.var(0, correction=0)
        case _:
            assert_never(rule.combine)
    return found.float()


def disagreement(scores: Tensor) -> Tensor:
    """Standard deviation over n members, sqrt(mean_i (s_i - mean)^2); (n, B) -> (B,)."""
    return scores.double().std(0, correction=0).float()
