"""Weights of episodes that another policy than the one in training has sampled. Grids are (B, T), nats."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import limited

Correction = Literal["none", "truncated", "masked"]
Level = Literal["token", "sequence"]


def ratios(log_ratio: Tensor, mask: Tensor, level: Level) -> Tensor:
    """exp(log pi - log mu) of the policy pi in training and the policy mu that sampled: of each token, or of the whole
    response at each of its tokens; 0 on invalid tokens. A token's own ratio leaves out the tokens before it, so
    advantages that it weighs are biased even where nothing is truncated."""
    log_ratio = torch.where(mask, log_ratio, 0.0)
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    return torch.where(mask, limited(log_ratio).exp(), 0.0)


def corrected(ratio: Tensor, correction: Correction, most: float) -> Tensor:
    """The weight of an advantage by its importance ratio, any shape. truncated: min(ratio, most), which bounds the
    variance and leaves a bias; masked: the ratio where it is at most `most`, else 0; none: 1.

    >>> [corrected(torch.tensor([0.5, 3.0]), kind, 2.0).tolist() for kind in ("none", "truncated", "masked")]
    [[1.0, 1.0], [0.5, 2.0], [0.5, 0.0]]
    """
    if correction == "none":
        return torch.ones_like(ratio)
    return ratio.clamp(max=most) if correction == "truncated" else torch.where(ratio <= most, ratio, 0.0)


def effective_share(ratio: Tensor, mask: Tensor) -> Tensor:
    """() (sum r)^2 / (n sum r^2) over the n valid tokens, the effective sample size as a share: 1 where all ratios are
    equal, 1/n where one token has all the weight.

    >>> ratio, mask = torch.tensor([[2.0, 2.0, 0.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> float(effective_share(ratio, mask))
    0.5
    """
    valid = ratio[mask].double()
    return valid.sum().square() / (len(valid) * valid.square().sum())
