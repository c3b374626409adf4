"""The score of one method at a given KL on one seed, between the KLs at which its arms end; pure functions.

An arm that ends at a KL of its own is compared with the arms of another method that end below and above it. Points on
the way of a training do not serve: a policy that is passing through a KL has not had the time to use it.

Reward is a concave function of the KL, so the curve at the mean KL of several seeds lies above the mean of the curve,
and an arm whose KL scatters over seeds would look worse than it is. Each seed is therefore compared with the curve of
its own seed, at its own KL. The mean of these differences is free of that bias: it estimates the mean distance to the
method's curve at the KLs at which the compared seeds end. Which seeds are compared depends on KLs alone, not on scores.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Refusal = Literal["few arms", "below", "beyond", "far apart", ""]
LEAST = 3
"""Points of a curve, the reference included: a straight line through two lies below a concave curve."""
WIDEST = 2.0
"""Ratio of neighbouring KLs that is still bridged. Where reward is a parabola in √KL whose maximum lies between two
ends at a ratio of r, the curve lies below it by up to ((√r - 1) / (√r + 1))² of its rise over the reference: 2.9 % at a
ratio of 2, 11 % at 4."""
LEAST_SEEDS = 2
"""Seeds that a comparison needs, and at least half of the arm's planned seeds: fewer are too few to compare."""
_APART = 1e-4
_STEP = 1e-5


def refusal(ends: Array, at: float, reference: bool) -> Refusal:
    """Return why the curve through arms that end at these KLs, (K,) ascending, has no value at the KL `at`; empty where
    it has one. `reference`: whether the score of the reference, at a KL of 0, is known."""
    points = np.append(0.0, ends) if reference else ends
    if len(ends) < 2 or len(points) < LEAST or not (np.diff(points) > _APART * points[-1]).all():
        return "few arms"
    if not ends[0] <= at <= ends[-1]:
        return "below" if at < ends[0] else "beyond"
    above = max(1, int(np.searchsorted(ends, at)))
    return "far apart" if ends[above] > WIDEST * ends[above - 1] else ""


def enough(compared: int, seeds: int) -> bool:
    """Return whether so many comparable seeds suffice for an arm of `seeds` planned seeds."""
    return compared >= max(LEAST_SEEDS, seeds / 2)


def curve_at(kl: Array, values: Array, reference: Array | None, own: Array) -> Array:
    """(P,) whose mean is the curve at the mean of `own`, and whose spread is that of the curve to first order (the
    delta method).

    `kl`, `values`: (K, P), nats per sequence and metric of each arm and prompt on one seed, in ascending order of the
    mean KLs; `reference`: (P,) of the metric under the reference, None where it is not known; `own`: (P,) KL of the
    arm that is compared. Raises `ValueError` where there is a `refusal`.
    """
    xs, ys, at = kl.mean(1), values.mean(1), float(own.mean())
    if why := refusal(xs, at, reference is not None):
        raise ValueError(f"no curve at {at:g}: {why}")
    if reference is not None:
        kl, values = np.vstack([np.zeros_like(own), kl]), np.vstack([reference, values])
        xs, ys = kl.mean(1), values.mean(1)
    by_kl, by_value, slope = _gradient(xs, ys, at)
    moved = by_kl[:, None] * (kl - xs[:, None]) + by_value[:, None] * (values - ys[:, None])
    return np.asarray(interpolate(xs, ys, at) + slope * (own - at) + moved.sum(0), dtype=np.float64)


def interpolate(kl: Array, values: Array, at: float) -> float:
    """The monotone piecewise cubic through these points in d = sqrt(KL), in which reward is nearly a parabola.

    Slopes are weighted harmonic means of the neighbouring chords', 0 where these differ in sign (Fritsch and Butland
    1984, SIAM J. Sci. Stat. Comput. 5:300, eq. 5), so the curve never leaves the values of the two points around `at`.
    Shapes: (K,), K at least 2, `kl` strictly ascending.

    >>> interpolate(np.array([0.0, 1.0, 4.0]), np.array([0.0, 1.0, 2.0]), 2.25)
    1.5
    """
    from scipy.interpolate import PchipInterpolator

    return float(PchipInterpolator(np.sqrt(kl), values)(np.sqrt(at)))


def _gradient(kl: Array, values: Array, at: float) -> tuple[Array, Array, float]:
    """Derivatives of `interpolate` by every KL and every value, (K,) each, and by `at`; by central differences."""

    def change(own_kl: Array, own_values: Array, place: float) -> float:
        high, low = (interpolate(kl + way * own_kl, values + way * own_values, at + way * place) for way in (1, -1))
        return (high - low) / 2

    none, unit = np.zeros(len(kl)), np.eye(len(kl))
    x, y = _STEP * float(kl[-1]), _STEP * max(float(np.ptp(values)), 1e-9)
    # The reference's KL of 0 is no measurement, and its root has no derivative.
    by_kl = np.array([change(x * row, none, 0.0) / x if own > 0 else 0.0 for row, own in zip(unit, kl, strict=True)])
    by_value = np.array([change(none, y * row, 0.0) / y for row in unit])
    return by_kl, by_value, change(none, none, x) / x
