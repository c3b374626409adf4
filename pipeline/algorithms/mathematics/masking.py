"""Averages over valid tokens only.

x and mask have one shape, any; the mask is True on valid tokens and made from recorded lengths
(`pipeline.models.policy.response_mask`). What stands on invalid tokens is never read, NaN and infinities included.
Results have the dtype of x. Variance and whitening are not to be differentiated: a NaN on padding would reach the
gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Σ x / n over the n valid tokens, a scalar in units of x. Every token counts once, whatever row it is in.

    Raises `ValueError` for a mask that is all False.

    >>> masked_mean(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([True, True, False])).item()
    2.0
    """
    count = mask.sum()
    if not count:
        raise ValueError("masked_mean: no valid token")
    # By `where`: a product with the mask would turn NaN and infinities on padding into NaN.
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum() / count


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Σ (x - mean)² / n over the n valid tokens, a scalar in squared units of x.

    Biased: divides by n, as the code of Ziegler 2019 (OpenAI `lm-human-preferences`), and not by n - 1, as
    `Tensor.var`. Raises `ValueError` for a mask that is all False.
    """
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def masked_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """Scale to mean 0 and unit variance over valid tokens: (x - mean) / √(var + 1e-8).

    Returns the shape of x without a unit, 0 on invalid tokens. As in the code of Ziegler 2019 (OpenAI
    `lm-human-preferences`). For fp32 and wider, and bf16: in fp16 1e-8 is 0, and what does not vary becomes NaN. Raises
    `ValueError` for a mask that is all False.
    """
    mean = masked_mean(x, mask)
    white = (x - mean) * torch.rsqrt(masked_var(x, mask) + EPSILON)
    return torch.where(mask, white, torch.zeros((), dtype=x.dtype, device=x.device))


def lowest(x: Tensor, mask: Tensor, share: float) -> Tensor:
    """True at this share of the valid tokens, rounded, at least one: those with the lowest x; of equal ones the first.

    >>> lowest(torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([True, True, True, False]), 0.6)
    tensor([False,  True,  True, False])
    """
    count = max(round(share * int(mask.sum())), 1)
    order = torch.where(mask, x, torch.inf).flatten().argsort(stable=True)[:count]
    chosen = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    chosen[order] = True
    return chosen.view(mask.shape) & mask
