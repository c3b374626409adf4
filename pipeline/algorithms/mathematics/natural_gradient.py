"""TRPO's step: the largest gain within a bound on the mean KL(old || new) (Schulman 2015, arXiv 1502.05477).

The KL is δ ≈ ½ s'Fs for a step s, with F the Fisher matrix of the policy, so the best direction is F⁻¹ times the
gradient of the gain. F is known by its products with vectors alone. Vectors are flat, (P,) over all trained weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import expectation

SHRINK = 0.8
"""Factor on the step after each length that the line search refuses."""
CONVERGED = 1e-10
"""Squared residual, as a share of the squared target, at which conjugate gradients end early."""


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor, iterations: int) -> Tensor:
    """x with A x ≈ `target`, for a symmetric positive definite A that is given by ``product(v) = A v``.

    target (P,); at most `iterations` products, fewer once the residual is small. Without rounding, x is exact after as
    many iterations as A has different eigenvalues. Hestenes and Stiefel 1952; Schulman 2015, appendix C.
    """
    solution, residual, direction = torch.zeros_like(target), target.clone(), target.clone()
    size = goal = residual.dot(residual)
    for _ in range(iterations):
        if not size > CONVERGED * goal:
            break
        curved = product(direction)
        length = size / direction.dot(curved)
        solution.add_(length * direction)
        residual.sub_(length * curved)
        last, size = size, residual.dot(residual)
        direction.mul_(size / last).add_(residual)
    return solution


def fisher_of_logits(pi: Tensor, tangent: Tensor) -> Tensor:
    """The Fisher matrix of a categorical distribution by its logits, times a vector: (diag π - π π') v; both (n, V)."""
    return pi * (tangent - expectation(pi, tangent).unsqueeze(-1))


@dataclass(frozen=True)
class LineSearch:
    """Outcome of a line search."""

    accepted: bool
    tried: int
    """Number of points."""
    gain: float
    """Increase of the objective; 0 when all points were refused."""
    kl: float
    """KL(old || new), nats per token; 0 when all points were refused."""


def line_search(evaluate: Callable[[float], tuple[float, float]], delta: float, points: int) -> LineSearch:
    """Try 1, 0.8, 0.8² ... of a step until the objective gains and the KL is at most `delta`; at most `points` of them.

    ``evaluate(share)`` gives gain and KL at a share of the step; a point that is not finite is refused.

    >>> line_search(lambda share: (share, share**2), 0.7, 10)
    LineSearch(accepted=True, tried=2, gain=0.8, kl=0.6400000000000001)
    >>> line_search(lambda share: (-share, 0.0), 0.7, 3)
    LineSearch(accepted=False, tried=3, gain=0.0, kl=0.0)
    """
    for tried in range(1, points + 1):
        gain, kl = evaluate(SHRINK ** (tried - 1))
        if gain > 0 and kl <= delta and math.isfinite(gain):
            return LineSearch(True, tried, gain, kl)
    return LineSearch(False, points, 0.0, 0.0)
