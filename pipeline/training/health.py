"""Signs that a trial can still learn: finite numbers and a policy that has not collapsed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pipeline.config.trial import TrialConfig


class Diverged(Exception):
    """The numbers are no longer finite, or the policy has collapsed; an outcome of the trial, not a fault of the
    program."""


def repetition(responses: Tensor, mask: Tensor) -> float:
    """Mean over responses of 1 - different token pairs / token pairs, in [0, 1); 0 where no response has a pair.

    responses (B, T) int64, mask (B, T). "a a a a" has three pairs, one of them different: 2/3.
    """
    tokens, counts = int(responses.max()) + 1, mask[:, 1:].sum(1)
    rows = counts > 0
    if not bool(rows.any()):
        return 0.0
    pairs = torch.where(mask[:, 1:], responses[:, :-1] * tokens + responses[:, 1:], -1)
    ordered = pairs.sort(dim=1).values
    fresh = torch.ones_like(mask[:, 1:])
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    different = (fresh & (ordered >= 0)).sum(1)
    return float((1 - different[rows] / counts[rows]).mean())


def check_collapse(metrics: dict[str, float], cfg: TrialConfig) -> None:
    """Raise `Diverged` for a rollout whose policy hardly chooses any more, or repeats the same text over and over."""
    entropy_per_token = metrics["objective/entropy_per_token"]
    if entropy_per_token < cfg.train.min_entropy:
        raise Diverged(
            f"entropy collapsed: {entropy_per_token:.3g} nats per token, below train.min_entropy ="
            f" {cfg.train.min_entropy:g}"
        )
    repeated = metrics["objective/repetition"]
    if repeated > cfg.train.max_repetition:
        raise Diverged(
            f"repeated text: {repeated:.1%} of the token pairs, above train.max_repetition ="
            f" {cfg.train.max_repetition:g}"
        )


def check_finite(values: Mapping[str, float]) -> None:
    """Raise `Diverged` with the names of those that are not finite."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise Diverged(f"not finite: {', '.join(bad)}")
