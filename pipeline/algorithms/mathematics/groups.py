"""Scores of several responses to one prompt: compared with each other, and their soft maximum.

scores (B,); groups (B,) int64, equal for the responses to one prompt, in any order; results (B,). Every comparison
raises `ValueError` for a group of one, which has nothing to be compared with.
"""

from __future__ import annotations

import math

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


def v_star(scores: Tensor, beta: float) -> Tensor:
    """The soft maximum of the scores of N reference samples.

        V* = β₁ (logsumexpᵢ(rᵢ / β₁) - log N)

    scores (n, N) in score units, N samples of each of n prompts; β₁ = `beta` > 0, in score units per nat; returns (n,)
    in score units, float64. It lies between the mean of the scores (β₁ → ∞) and their maximum (β₁ → 0). The logarithm
    of a mean is biased low: for r ~ N(0, 1), whose V* is 1 / (2 β₁), 8 samples give 0.70 of 1.00 at β₁ 0.5. Brantley
    2025 (arXiv 2505.20686), stage 1 of A*-PO. Raises `ValueError` where there is no sample.
    """
    count = scores.shape[1]
    if not count:
        raise ValueError("v_star: a prompt has no scored sample")
    return beta * (torch.logsumexp(scores.double() / beta, dim=1) - math.log(count))


def _sums(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and size of each value's group, (B,) each."""
    _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    if bool((sizes < 2).any()):
        raise ValueError(
            "responses are compared within their group: there must be at least two responses to every prompt"
        )
    sums = torch.zeros(len(sizes), dtype=values.dtype, device=values.device).index_add(0, index, values)
    return sums[index], sizes[index]
