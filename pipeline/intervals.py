"""The two intervals that every floor needs: that of a rate and that of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


def wilson(rate: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion observed in `n` independent trials (Wilson 1927); ties may make ``rate * n`` fractional.

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


def student(values: Sequence[float] | NDArray[np.float64], level: float = 0.95) -> tuple[float, float, float]:
    """Mean of independent `values` and its interval by Student's t, n - 1 degrees of freedom; of one value, an infinite one.

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
