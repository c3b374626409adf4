"""Numbers to compute with: drawn ones, and rows of different lengths as grids with their masks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def eps(dtype: torch.dtype) -> float:
    """Twice the largest relative error of one rounding."""
    return torch.finfo(dtype).eps


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that `dtype` holds exactly, so that only arithmetic can round."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def grid(rows: Sequence[Sequence[float]], pad: int = 0, junk: float = float("nan")) -> Tensor:
    """Rows of different lengths as (B, T), `junk` behind them, `pad` columns more than the longest needs."""
    width = max(len(row) for row in rows) + pad
    return torch.tensor([[*row, *[junk] * (width - len(row))] for row in rows], dtype=torch.float64)


def prefix(rows: Sequence[Sequence[object]], pad: int = 0) -> Tensor:
    """Their mask: True on the numbers, False on the junk."""
    width = max(len(row) for row in rows) + pad
    return torch.tensor([[place < len(row) for place in range(width)] for row in rows])


def divergence(pi: Sequence[float], ref: Sequence[float]) -> float:
    return math.fsum(p * math.log(p / q) for p, q in zip(pi, ref, strict=True) if p > 0)
