"""Power of a design: the minimum detectable effect, and how many seeds a given effect takes. Pure functions; the test
is the one of the reports, `reports.statistics.two_level.two_level_p`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reports.statistics.hierarchical import LONE, Moments, posterior
from reports.statistics.two_level import ALPHA

Array = NDArray[np.float64]
POWER = 0.8
MOST_SEEDS = 1_000
_TOLERANCE = 1e-6
"""Relative tolerance of the shift: no table shows so many digits."""
_QUANTILES = (np.arange(40) + 0.5) / 40


def detectable(given: Moments, alpha: float = ALPHA, power: float = POWER) -> float:
    """The true difference that the two-sided test at level `alpha` finds with probability `power`, in the unit of
    `given`, the moments of one table of paired differences.

    The variance between seeds is taken to be the one seen, less what sampling of completions adds; with one seed it is
    that of the prior's scale. Over quantiles of the variance that S seeds would show (chi square, S - 1 degrees of
    freedom) the test needs an effect beyond the half-width of its interval; solves
    ``mean P(|difference| > half-width) = power`` for the true difference. 0 where nothing varies.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtri, ndtr

    seeds = given.seeds
    of_seeds = float((LONE * given.spread) ** 2 if seeds == 1 else np.maximum(given.between - given.within, 0.0))
    sd = float(np.sqrt(of_seeds / seeds + given.prompts))
    if sd == 0.0:
        return 0.0
    seen = np.zeros(1)
    if seeds > 1:
        seen = (of_seeds + float(given.within)) * chdtri(seeds - 1, 1 - _QUANTILES) / (seeds - 1)
    barrier = posterior(replace(given, between=seen)).half_width(1 - alpha) / sd

    def missing(shift: float) -> float:
        return power - float(np.mean(ndtr(shift - barrier) + ndtr(-shift - barrier)))

    highest = 3 * float(np.quantile(barrier, power)) + 10
    return float(brentq(missing, 0.0, highest, rtol=_TOLERANCE)) * sd  # the probability rises with the shift


def seeds_needed(given: Moments, target: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Seeds with which a true difference of `target` is found with probability `power`, on as many prompts.

    `given`: moments of a table of paired differences; None with one seed, which does not show how seeds differ, and
    where not even `MOST_SEEDS` are enough on so few prompts. With few seeds the answer is itself uncertain: with 3 the
    variance between seeds is known to within a factor of about 6 either way.
    """
    if given.seeds < 2 or target <= 0:
        return None
    shared = max(float(given.prompts - given.within / given.seeds), 0.0)
    variance = np.maximum(given.between - given.within, 0.0) + given.within

    def found_with(count: int) -> float:
        prompts = np.asarray(shared + given.within / count)
        return detectable(replace(given, seeds=count, between=variance, prompts=prompts), alpha, power)

    found = bisect_left(range(2, MOST_SEEDS + 1), True, key=lambda count: found_with(count) <= target) + 2
    return found if found <= MOST_SEEDS else None
