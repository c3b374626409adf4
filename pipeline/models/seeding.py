"""Random streams that are named, not counted: the same labels give the same numbers, whatever ran before.

A resumed trial therefore has no generator state to restore, and no code path can shift another's numbers.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def seed_of(*labels: object) -> int:
    """A 63-bit seed from labels, for example ``seed_of(3, "rollout", 17)``."""
    return int.from_bytes(hashlib.sha256(repr(labels).encode()).digest()[:8]) >> 1


def stream(*labels: object) -> torch.Generator:
    """A CPU generator for these labels."""
    return torch.Generator().manual_seed(seed_of(*labels))


def uniforms(rows: int, columns: int, *labels: object) -> Tensor:
    """(rows, columns) float64 in [0, 1), drawn on the CPU so that every device gets the same numbers."""
    return torch.rand(rows, columns, generator=stream(*labels), dtype=torch.float64)


def permutation(n: int, *labels: object) -> Tensor:
    """A permutation of 0 .. n-1, (n,) int64."""
    return torch.randperm(n, generator=stream(*labels))
