"""The value of a prompt under the best policy at a given KL penalty, estimated from samples of the reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
