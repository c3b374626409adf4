"""Scores of several responses to one prompt, compared with each other.

scores (B,); groups (B,) int64, equal for the responses to one prompt, in any order; results (B,). Every function raises
`ValueError` for a group of one, which has nothing to be compared with.
"""

from __future__ import annotations

import torch
from torch import Tensor


def leave_one_out(scores: Tensor, groups: Tensor) -> Tensor:
    """Each score minus the mean of the *other* scores of its group; in units of the scores."""
    total, sizes = _sums(scores, groups)
    return scores - (total - scores) / (sizes - 1)


def centred(scores: Tensor, groups: Tensor) -> Tensor:
    """Each score minus the mean of its group, itself included; in units of the scores."""
    total, sizes = _sums(scores, groups)
    return scores - total / sizes


def normalised(scores: Tensor, groups: Tensor, epsilon: float) -> Tensor:
    """(score - mean) / (sd + epsilon) within each group; the variance divides by G - 1, as in TRL, verl and OpenRLHF.

    With G = 2 the result is ±0.707 whatever the gap: small differences count as much as large ones.
    """
    distances = centred(scores, groups)
    squares, sizes = _sums(distances**2, groups)
    return distances / ((squares / (sizes - 1)).sqrt() + epsilon)


def _sums(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and size of each value's group, (B,) each."""
    _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    if bool((sizes < 2).any()):
        raise ValueError(
            "responses are compared within their group: there must be at least two responses to every prompt"
        )
    sums = torch.zeros(len(sizes), dtype=values.dtype, device=values.device).index_add(0, index, values)
    return sums[index], sizes[index]
