"""Averages that see valid tokens only.

Masks are True on valid tokens. They are made from recorded lengths (`pipeline.models.policy.response_mask`).
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum over valid tokens. Invalid entries may hold anything, NaN included: they are not multiplied by 0."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over valid tokens; x and mask of equal shape. Raises `ValueError` for a mask that is all False.

    >>> masked_mean(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([True, True, False])).item()
    2.0
    """
    count = mask.sum()
    if not count:
        raise ValueError("masked_mean: no valid token")
    return masked_sum(x, mask) / count


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Biased variance over valid tokens (divides by n, as the OpenAI RLHF code)."""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def masked_whiten(x: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale to unit variance over valid tokens; with `shift_mean` also to mean 0.

    Biased variance, 1e-8 under the root. Invalid positions become 0. Advantages lose their mean, rewards
    keep it (``shift_mean=False``), as in Ziegler 2019's code.
    """
    mean = masked_mean(x, mask)
    white = (x - mean) * torch.rsqrt(masked_var(x, mask) + EPSILON)
    if not shift_mean:
        white = white + mean
    return torch.where(mask, white, torch.zeros((), dtype=x.dtype, device=x.device))
