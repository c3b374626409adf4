"""The one interval that every floor needs: that of a rate."""

from __future__ import annotations

import math
from statistics import NormalDist


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
