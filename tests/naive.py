"""The mathematics once more, as plainly as it can be said: loops over Python numbers, no tensors.

Tests hold `pipeline.algorithms.mathematics` against these. Each takes another road than the code does: cases instead of
max and clamp, sums instead of recursions, probabilities instead of log-probabilities. Numbers may be floats or
Fractions, so that a reference can be free of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

Number = float | Fraction
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def eps(dtype: torch.dtype) -> float:
    """Twice the largest relative error of one rounding."""
    return torch.finfo(dtype).eps


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    """Normal numbers that `dtype` holds exactly, so that only arithmetic can round."""
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def grid(
    rows: Sequence[Sequence[float]], pad: int = 0, junk: float = float("nan"), dtype: torch.dtype = torch.float64
) -> Tensor:
    """Rows of different lengths as (B, T), `junk` behind them, `pad` columns more than the longest needs."""
    width = max(len(row) for row in rows) + pad
    return torch.tensor([[*row, *[junk] * (width - len(row))] for row in rows], dtype=dtype)


def prefix(rows: Sequence[Sequence[object]], pad: int = 0) -> Tensor:
    """Their mask: True on the numbers, False on the junk."""
    width = max(len(row) for row in rows) + pad
    return torch.tensor([[place < len(row) for place in range(width)] for row in rows])


def gae(rewards: Sequence[Number], values: Sequence[Number], gamma: Number, lam: Number) -> list[Number]:
    """Schulman 2016, eq. 16, as written: the sum over delta with weights (gamma lambda)^l, of one finished episode."""
    after = [*values[1:], 0]
    delta = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** (j - t) * delta[j] for j in range(t, len(delta))) for t in range(len(delta))]


def surrogate(ratio: float, advantage: float, clip: float) -> tuple[float, bool]:
    """Loss of one token, and whether the clip decides it: gains end at 1 + clip for good tokens, at 1 - clip for bad
    ones."""
    if advantage > 0 and ratio > 1 + clip:
        return -advantage * (1 + clip), True
    if advantage < 0 and ratio < 1 - clip:
        return -advantage * (1 - clip), True
    return -advantage * ratio, False


def value_loss(vpred: float, value: float, target: float, clip: float) -> tuple[float, bool]:
    """Loss of one token, and whether the clip decides it: a step beyond `clip` counts as `clip` where that looks
    worse."""
    allowed = value + math.copysign(min(abs(vpred - value), clip), vpred - value)
    near, far = abs(vpred - target), abs(allowed - target)
    return 0.5 * max(near, far) ** 2, far > near


def divergence(pi: Sequence[float], ref: Sequence[float]) -> float:
    """KL of two lists of probabilities, nats."""
    return math.fsum(p * math.log(p / q) for p, q in zip(pi, ref, strict=True) if p > 0)
