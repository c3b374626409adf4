"""What a design could have found: the minimum detectable effect, and how many seeds a given effect takes. Pure
functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.statistics import two_level as stats

Array = NDArray[np.float64]
POWER = 0.8
MOST_SEEDS = 1_000
_TOLERANCE = 1e-6
"""Of the noncentrality: no table shows so many digits."""
_QUANTILES = (np.arange(1_000) + 0.5) / 1_000


@dataclass(frozen=True)
class Need:
    """How many seeds it takes to find an effect."""

    seeds: int | None
    """None where no number of seeds is enough on so few prompts."""
    smallest: float
    """What `MOST_SEEDS` seeds would find on as many prompts: only more prompts go below."""


def detectable(se: float, df: float, alpha: float = stats.ALPHA, power: float = POWER) -> float:
    """The true difference that a two-sided t test at level `alpha` finds with probability `power`, in the unit of `se`.

    Solves ``P(|T| > t(1 - alpha / 2, df)) = power`` for the noncentrality of T (Cohen 1988, 2.4). A difference of
    n values with standard deviation s has se = s / sqrt(n), df = n - 1. 0 for se = 0.
    """
    from scipy.special import chdtri, ndtr, stdtrit

    if se == 0.0:
        return 0.0
    critical = float(stdtrit(df, 1 - alpha / 2))
    # T is (Z + shift) / w: averaged over quantiles of w, where scipy's noncentral t gives NaN for large shifts.
    barrier = critical * np.sqrt(chdtri(df, 1 - _QUANTILES) / df)

    low, high = 0.0, 3 * critical + 10
    while high - low > _TOLERANCE:  # the probability rises with the shift
        shift = (low + high) / 2
        found = float(np.mean(ndtr(shift - barrier) + ndtr(-shift - barrier)))
        low, high = (shift, high) if found < power else (low, shift)
    return (low + high) / 2 * se


def seeds_needed(table: Array, target: float, alpha: float = stats.ALPHA, power: float = POWER) -> Need | None:
    """Seeds with which a true difference of `target` is found with probability `power`, on as many prompts.

    `table`: (S, P) paired differences, S at least 2; None with fewer, since one seed does not tell how seeds differ.
    The variances between seeds, between prompts and of the rest are those of the table (a two-way layout
    without replication); the test is the one of `reports.statistics.two_level.mean`. With few seeds the answer is
    itself uncertain: with 3 the variance between seeds is known to within a factor of about 6 either way.
    """
    seeds, prompts = table.shape
    if seeds < 2 or target <= 0:
        return None
    rows, columns = table.mean(1), table.mean(0)
    rest = float(((table - rows[:, None] - columns + table.mean()) ** 2).sum()) / max(1, (seeds - 1) * (prompts - 1))
    of_seeds = float(rows.var(ddof=1))
    of_prompts = max(0.0, float(columns.var(ddof=1)) - rest / seeds) if prompts > 1 else 0.0

    def found_with(count: int) -> float:
        a = of_seeds / count
        b = (of_prompts + rest / count) / prompts if prompts > 1 else 0.0
        if a + b == 0.0:
            return 0.0
        df = (a + b) ** 2 / (a**2 / (count - 1) + b**2 / max(1, prompts - 1))
        return detectable(float(np.sqrt(a + b)), df, alpha, power)

    smallest = found_with(MOST_SEEDS)
    if smallest > target:
        return Need(None, smallest)
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found_with(middle) <= target else (middle, high)
    return Need(high, smallest)
