"""The intervals that every floor needs: of a rate, of a rate over groups, and of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float, float]
"""Value, lower end, upper end."""


def wilson(rate: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion observed in `n` independent trials (Wilson 1927); ties may make ``rate * n``
    fractional.

    Never empty, not even at 0 or 1; (0, 1) when nothing was observed.

    >>> [round(bound, 3) for bound in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    if n <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    shrink = 1 + z**2 / n
    centre = (rate + z**2 / (2 * n)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    # At the ends the bound is the rate itself; rounding must not move it.
    return (0.0 if rate == 0 else max(0.0, centre - half)), (1.0 if rate == 1 else min(1.0, centre + half))


def grouped(
    successes: Sequence[float] | NDArray[np.float64], sizes: Sequence[int] | NDArray[np.int64], level: float = 0.95
) -> Interval:
    """Rate of observations that come in independent groups (the draws of one prompt, the pairs of one prompt), and its
    interval.

    rate = sum_g s_g / sum_g m_g, interval: Wilson's with the effective number of observations (Korn and Graubard 1998)
    n = rate (1 - rate) / V, V = G/(G-1) sum_g (s_g - rate m_g)^2 / (sum_g m_g)^2, times (z / t_{G-1})^2.
    n is at most the number of observations, as if they were independent; where all agree it is that of the groups.

    `successes` s (G,): sums of values in [0, 1], ties count half; `sizes` m (G,): observations of each group, 1 or
    more. In simulation, over 20 groups or more, a 95 % interval covers 92 to 98 % where the rate is 0.5 to 0.8 and 89
    to 99 % where it is within 5 points of 0 or 1, the least with 20 to 64 groups of 8 that are much alike. With one
    group, (0, 1).

    >>> [round(one, 3) for one in grouped([4, 2, 3, 0, 4], [4, 4, 4, 4, 4])]
    [0.65, 0.208, 0.929]
    """
    from scipy.special import stdtrit

    counts, totals = np.asarray(successes, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    groups, n = len(totals), float(totals.sum())
    rate = float(counts.sum()) / n
    if groups < 2:
        return rate, 0.0, 1.0
    variance = groups / (groups - 1) * float(((counts - rate * totals) ** 2).sum()) / n**2
    effective = float(groups) if rate in (0.0, 1.0) else min(rate * (1 - rate) / variance, n) if variance > 0 else n
    shrink = NormalDist().inv_cdf((1 + level) / 2) / float(stdtrit(groups - 1, (1 + level) / 2))
    return rate, *wilson(rate, effective * shrink**2, level)


def student(values: Sequence[float] | NDArray[np.float64], level: float = 0.95) -> Interval:
    """Mean of independent `values` and its interval by Student's t, n - 1 degrees of freedom; of one value, an infinite
    one.

    >>> [round(one, 3) for one in student([1.0, 2.0, 3.0, 4.0])]
    [2.5, 0.446, 4.554]
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if array.size < 2:
        return mean, -math.inf, math.inf
    half = float(t.ppf((1 + level) / 2, array.size - 1)) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return mean, mean - half, mean + half


def last_tenth(values: NDArray[np.float64]) -> float:
    """The mean of the last tenth of a series' finite values (at least one): where training arrived. NaN without any.

    >>> last_tenth(np.array([0.0] * 16 + [1.0, 2.0, 3.0, math.nan]))
    3.0
    """
    finite = values[np.isfinite(values)]
    return float(finite[-max(1, len(finite) // 10) :].mean()) if len(finite) else math.nan
