"""What one method reaches at a given KL, between the KLs at which its arms end; pure functions.

An arm that ends at a KL of its own is held against the arms of another method that end below and above it. Points on
the way of a training do not serve: a policy that is passing through a KL has not had the time to use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEAST = 3
"""Points of a curve, the reference included: a straight line through two lies below a concave curve."""
_STEP = 1e-5


@dataclass(frozen=True)
class EndCurve:
    """Reward over KL through the ends of a method's arms."""

    kl: Array
    """(K, S, P) nats per sequence of each arm, seed and prompt; ascending by the means over S and P."""
    values: Array
    """(K, S, P) of the metric."""
    reference: Array | None = None
    """(S, P) of the metric under the reference, which ends at a KL of 0; None where it is not known."""

    @property
    def range(self) -> tuple[float, float]:
        """KL between which arms have ended."""
        ends = self._ends
        return float(ends[0]), float(ends[-1])

    @property
    def _ends(self) -> Array:
        """(K,) mean KL of each arm, always summed in one order: the ends of `range` are points of the curve."""
        means: Array = self.kl.mean((1, 2))
        return means

    def at(self, kl: Array) -> Array:
        """(S, P), linear in what was measured: its mean is the curve at the mean of `kl`, its spread that of the curve
        to first order (the delta method).

        In simulation (two or three betas and the reference, three laws, 3 or 5 seeds; n = 400 studies each) the 95 %
        interval of the difference of an arm to it covers 96 to 98 %.

        `kl`: (S, P) of the arm that is compared, or one number. Raises `ValueError` outside of `range`, and with fewer
        than `LEAST` points.
        """
        at = float(np.mean(kl))  # before the broadcast, whose mean may round a single number
        kl = np.broadcast_to(np.asarray(kl, dtype=np.float64), self.kl.shape[1:])
        xs, ys = self._ends, self.values.mean((1, 2))
        if len(xs) + (self.reference is not None) < LEAST or not xs[0] <= at <= xs[-1]:
            raise ValueError(f"no curve at {at:g}: {len(xs)} arms, from {xs[0]:g} to {xs[-1]:g}")
        tables = list(self.values)
        if self.reference is not None:
            xs, ys = np.append(0.0, xs), np.append(self.reference.mean(), ys)
            tables = [self.reference, *tables]
        by_kl, by_value, slope = _gradient(xs, ys, at)
        table = interpolate(xs, ys, at) + slope * (kl - at)
        for weight, value, mean in zip(by_value, tables, ys, strict=True):
            table = table + weight * (value - mean)
        arms = len(self.kl)
        for weight, value, mean in zip(by_kl[-arms:], self.kl, xs[-arms:], strict=True):
            table = table + weight * (value - mean)
        return table


def interpolate(kl: Array, values: Array, at: float) -> float:
    """The monotone piecewise cubic through these points in d = sqrt(KL), in which reward is nearly a parabola.

    Slopes are weighted harmonic means of the neighbouring chords', 0 where these differ in sign (Fritsch and Butland
    1984, SIAM J. Sci. Stat. Comput. 5:300, eq. 5), so the curve never leaves the values of the two points around `at`.
    Between ends of 1.4 to 6.7 nats on three concave laws that rise by 5 points, its error is -0.03 to 0.03 points with
    three arms or more and -0.09 to 0.03 with two and the reference; straight lines lie 0.02 to 0.22 too low, in favour
    of the arm that is compared. Ends far apart are not bridged: in a measured study, two arms whose KLs differ 4.8
    times put the arm between them 0.3 points too low. Shapes: (K,), K at least 2, `kl` strictly ascending.

    >>> interpolate(np.array([0.0, 1.0, 4.0]), np.array([0.0, 1.0, 2.0]), 2.25)
    1.5
    """
    d, x = np.sqrt(kl), float(np.sqrt(at))
    gaps = np.diff(d)
    chords = np.diff(values) / gaps
    slopes = _slopes(gaps, chords)
    left = int(np.clip(np.searchsorted(d, x, side="right") - 1, 0, len(gaps) - 1))
    h, t = gaps[left], (x - d[left]) / gaps[left]
    start, end = slopes[left], slopes[left + 1]
    return float(
        values[left] * (1 + 2 * t) * (1 - t) ** 2
        + h * start * t * (1 - t) ** 2
        + values[left + 1] * t**2 * (3 - 2 * t)
        + h * end * t**2 * (t - 1)
    )


def _slopes(gaps: Array, chords: Array) -> Array:
    """Of the cubic at every point; shapes (K - 1,) and (K,)."""
    if len(gaps) == 1:
        return np.repeat(chords, 2)
    first, second = 2 * gaps[1:] + gaps[:-1], gaps[1:] + 2 * gaps[:-1]
    same = chords[:-1] * chords[1:] > 0
    safe = [np.where(same, part, 1.0) for part in (chords[:-1], chords[1:])]
    inner = np.where(same, (first + second) / (first / safe[0] + second / safe[1]), 0.0)
    return np.concatenate(
        [[_end_slope(gaps[0], gaps[1], chords[0], chords[1])], inner, [_end_slope(*gaps[:-3:-1], *chords[:-3:-1])]]
    )


def _end_slope(gap: float, next_gap: float, chord: float, next_chord: float) -> float:
    """Of the parabola through the last three points, cut so that the curve stays monotone."""
    slope = ((2 * gap + next_gap) * chord - gap * next_chord) / (gap + next_gap)
    if slope * chord <= 0:
        return 0.0
    return 3 * chord if chord * next_chord < 0 and abs(slope) > 3 * abs(chord) else float(slope)


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
