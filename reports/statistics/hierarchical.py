"""The posterior of a mean over seeds x prompts: seeds vary by an unknown standard deviation, which a grid mixes over.

The model of a crossed table Y (S seeds, P prompts), in the unit of Y:

    Y_sp = μ + a_s + b_p + e_sp,    a_s ~ N(0, τ²),    p(μ) ∝ 1,    p(τ) ∝ 1 / (A + τ)

The variances of b and e are known well, since P is large; only τ is not. Given τ everything is normal: with the mean Ȳ,
the variance B of the S seed means, v = var(e) / P and g = var(b) / P + v / S,

    p(τ | Y) ∝ p(τ) (τ² + v)^(-(S-1)/2) exp(-(S-1) B / (2 (τ² + v))),    μ | τ, Y ~ N(Ȳ, τ²/S + g)

so the posterior of μ is a mixture of normals around Ȳ over a grid of τ. Without prompts (v = g = A = 0) it is Student's
t with S - 1 degrees of freedom.

Above the scale A the prior is flat in log τ. That choice makes the posterior interval an interval of the stated
coverage however far seeds differ, where a half-Cauchy prior (Gelman 2006, Bayesian Analysis 1:515) covers too little as
soon as τ exceeds its scale. Below A the prior is flat in τ, so agreement of a few seeds is no proof that seeds agree.
A single seed has no information about τ and needs a prior that can be integrated: a half-Cauchy of scale `LONE` alone.
`make coverage` measures all of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCALE = 0.05
"""A, in standard deviations over prompts within a seed. PPO seeds alone differ by 0.02 to 0.2 of that standard
deviation on the profile `tiny`, reward models by 0.16."""
LONE = 0.1
"""Scale of the half-Cauchy prior with one seed, in the same unit."""
_GRID = np.geomspace(1e-3, 1e4, 141)
"""τ in units of A plus the standard deviation of the seed means: less than 1e-4 of any posterior lies beyond."""
_STEPS = 40
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Moments:
    """Statistics of tables' means, in the unit of the tables: shapes (...) of tables (..., S, P)."""

    seeds: int
    mean: Array
    between: Array
    """B: variance of the seed means, with S - 1 in the divisor; 0 with one seed."""
    within: Array
    """v: the part of `between` that the sampling of completions adds; 0 with one seed or one prompt."""
    prompts: Array
    """g: variance of the mean where seeds do not differ; 0 with one prompt."""
    spread: Array
    """Root mean square over seeds of the standard deviation over prompts; 0 with one prompt."""


@dataclass(frozen=True)
class Posterior:
    """Deviation of the true mean from its estimate: a mixture of K normals with mean 0. Shapes (..., K)."""

    weights: Array
    sds: Array

    def beyond(self, distance: Array | float) -> Array:
        """Probability that the true mean is farther than `distance` >= 0 from the estimate, on either side. Shape
        (...)."""
        from scipy.special import ndtr

        far = np.asarray(distance, dtype=np.float64)[..., None]
        return np.asarray((self.weights * 2.0 * ndtr(-far / self.sds)).sum(-1))

    def half_width(self, level: float) -> Array:
        """Distance within which the true mean lies with probability `level`, shape (...), to a relative 1e-9.

        Newton's steps on the logarithm of `beyond` over the logarithm of the distance, kept within a bracket.
        """
        from scipy.special import ndtr

        goal = np.log1p(-level)
        low, high = np.log(self.sds.min(-1)) - 10.0, np.log(self.sds.max(-1)) + 3.0
        at = (self.weights * np.log(self.sds)).sum(-1) + 0.7
        for _ in range(_STEPS):
            at = np.where((at > low) & (at < high), at, (low + high) / 2)
            ratio = np.exp(at)[..., None] / self.sds
            tail = (self.weights * 2.0 * ndtr(-ratio)).sum(-1)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                slope = (self.weights * ratio * np.exp(-(ratio**2) / 2)).sum(-1) * np.sqrt(2 / np.pi) / tail
                excess = np.log(tail) - goal
                step = excess / slope
            low, high = np.where(excess > 0, at, low), np.where(excess > 0, high, at)
            at = at + np.nan_to_num(step, nan=np.inf)
            if np.abs(step).max() < _TOLERANCE:
                break
        return np.asarray(np.exp(at), dtype=np.float64)


def moments(table: Array) -> Moments:
    """Mean and variances of crossed tables (..., S, P) by the two-way analysis of variance without replication.

    `prompts` is multiplied by the variance of Student's t with P - 1 degrees of freedom, which matters for few prompts.
    """
    seeds, prompts = table.shape[-2:]
    rows, columns = table.mean(-1), table.mean(-2)
    mean = rows.mean(-1)
    none = np.zeros_like(mean)
    between = rows.var(-1, ddof=1) if seeds > 1 else none
    if prompts == 1:
        return Moments(seeds, mean, between, none, none, none)
    inside, shared = table.var(-1, ddof=1).mean(-1), columns.var(-1, ddof=1)
    rest = np.maximum(inside - shared, 0.0) * seeds / (seeds - 1) if seeds > 1 else none
    widened = (prompts - 1) / max(prompts - 3, 1)
    return Moments(seeds, mean, between, rest / prompts, widened * shared / prompts, np.sqrt(inside))


def posterior(given: Moments) -> Posterior:
    """Return the posterior of the mean. All tables must vary: `spread` or `between` above 0."""
    alone = given.seeds == 1
    unit = (LONE if alone else SCALE) * np.asarray(given.spread)[..., None]
    between, within = np.asarray(given.between)[..., None], np.asarray(given.within)[..., None]
    tau = (unit + np.sqrt(between)) * _GRID
    variance = tau**2 + within
    prior = -np.log1p((tau / unit) ** 2) if alone else -np.log(unit + tau)
    # The grid is even in log τ: a density of τ becomes a weight by its factor τ.
    log_weights = prior + np.log(tau) - (given.seeds - 1) / 2 * (np.log(variance) + between / variance)
    weights = np.exp(log_weights - log_weights.max(-1, keepdims=True))
    sds = np.sqrt(tau**2 / given.seeds + np.asarray(given.prompts)[..., None])
    return Posterior(weights / weights.sum(-1, keepdims=True), sds)
