"""What a policy gained on its way from the reference: rewards over KL, Gao's law, and where over-optimisation begins.

Pure functions over one trial's records. KL is in nats per sequence unless said otherwise; d = sqrt(KL).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from reports.statistics.two_level import LEVEL, Estimate

Array = NDArray[np.float64]
SMOOTH = 5
"""Updates in a running mean: one rollout's mean reward is too noisy to interpolate."""
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class KLCurve:
    """Rewards of one trial as a function of how far it had drifted."""

    kl: Array
    """(K,) strictly ascending."""
    values: Mapping[str, Array]
    """Metric -> (K,)."""
    steps: Array
    """(K,) mean gradient step of the records pooled in a point."""
    weights: Array
    """(K,) records pooled in a point."""

    def at(self, metric: str, kl: float) -> float:
        """The metric where the trial had drifted by `kl`, linear between points; NaN outside of what it went
        through."""
        return float(np.interp(kl, self.kl, self.values[metric], left=math.nan, right=math.nan))


def kl_curve(steps: Array, kl: Array, values: Mapping[str, Array], smooth: int = SMOOTH) -> KLCurve | None:
    """Turn a trajectory into a function of KL: running means of `smooth` updates, then the monotone trend of KL over
    time.

    KL along training is noisy and may hover or fall back, so "the reward at KL k" is not unique. The least-squares
    non-decreasing fit of KL over steps (isotonic regression, pool adjacent violators; Barlow et al. 1972) pools the
    updates between which KL did not rise; their KL and rewards are averaged. Unlike the first crossing of a level,
    it is not drawn early by a noisy peak. None with fewer than two points. Shapes: (N,) each; a record with a
    non-finite number anywhere is left out.
    """
    columns = np.vstack([np.asarray(one, dtype=np.float64) for one in (steps, kl, *values.values())])
    columns = columns[:, np.isfinite(columns).all(axis=0)]
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    if columns.shape[1] < 2:
        return None
    columns = running_mean(columns, smooth)
    levels, weights = isotonic(np.maximum(columns[1], 0.0))
    starts = (np.cumsum(weights) - weights).astype(np.int64)
    pooled = np.add.reduceat(columns, starts, axis=1) / weights
    if len(starts) < 2:
        return None
    return KLCurve(levels, dict(zip(values, pooled[2:], strict=True)), pooled[0], weights)


def isotonic(values: Array) -> tuple[Array, Array]:
    """The least-squares non-decreasing fit: its levels, strictly ascending, and how many values are pooled in each;
    shapes (K,).

    Pool adjacent violators (Barlow et al. 1972), in the order of Busing (2022, Journal of Statistical Software 102,
    code snippet 1): first everything to the right that lies below the pool, then back to the left. Written out, since
    `scipy.optimize`, which has it, takes longer to import than a tenth of a report takes to draw. Shape of `values`:
    (N,), N at least 1.

    >>> [one.tolist() for one in isotonic(np.array([1.0, 3.0, 2.0, 4.0]))]
    [[1.0, 2.5, 4.0], [1.0, 2.0, 1.0]]
    """
    levels, weights = list[float](), list[float]()
    ahead = [float(value) for value in reversed(values)]
    while ahead:
        total = level = ahead.pop()
        weight = 1.0
        if levels and levels[-1] >= level:
            weight += weights.pop()
            total += (weight - 1.0) * levels.pop()
            level = total / weight
            while ahead and level >= ahead[-1]:
                total, weight = total + ahead.pop(), weight + 1.0
                level = total / weight
            while levels and levels[-1] >= level:
                weight += weights[-1]
                total += weights.pop() * levels.pop()
                level = total / weight
        levels.append(level)
        weights.append(weight)
    return np.array(levels), np.array(weights)


def running_mean(rows: Array, window: int) -> Array:
    """Centred means along the last axis; at the ends of what there is. Shapes: (..., N)."""
    n = rows.shape[-1]
    half = window // 2
    sums = np.concatenate([np.zeros((*rows.shape[:-1], 1)), np.cumsum(rows, axis=-1)], axis=-1)
    low, high = np.maximum(np.arange(n) - half, 0), np.minimum(np.arange(n) + half + 1, n)
    result: Array = (sums[..., high] - sums[..., low]) / (high - low)
    return result


def common_range(curves: Sequence[KLCurve]) -> tuple[float, float] | None:
    """The largest range of KL that all these trials went through; None where there is none."""
    if not curves:
        return None
    low, high = max(float(curve.kl[0]) for curve in curves), min(float(curve.kl[-1]) for curve in curves)
    return (low, high) if high > low else None


@dataclass(frozen=True)
class Law:
    """A fit of Gao's law R(d) = d (a - b log d) to the gain over the reference."""

    a: Estimate
    b: Estimate
    peak_kl: Estimate | None
    """KL at which the law has its maximum, d = exp(a / b - 1); None unless b and its interval are positive: the points
    show no bend."""
    peak_gain: float | None
    """R there: b d."""
    largest_kl: float
    """The largest KL fitted; a peak beyond it is an extrapolation."""
    points: int
    residual: float
    """Root mean squared residual, in the unit of the reward."""

    @property
    def extrapolated(self) -> bool:
        """Whether the peak lies beyond what was fitted."""
        return self.peak_kl is not None and self.peak_kl.value > self.largest_kl

    def at(self, kl: Array) -> Array:
        """The fitted gain over the reference at these KL."""
        d = np.sqrt(np.asarray(kl, dtype=np.float64))
        result: Array = _design(d) @ np.array([self.a.value, self.b.value])
        return result


def fit_law(
    kl: Sequence[Array], gain: Sequence[Array], weights: Sequence[Array] | None = None, level: float = LEVEL
) -> Law | None:
    """Least squares of R(d) = d (a - b log d), d = sqrt(KL) (Gao, Schulman and Hilton 2022, eq. for RL); linear in a
    and b.

    One entry of `kl`, `gain`, `weights` per trial, shapes (K_g,). Intervals: jackknife over trials (delete one, refit),
    Student's t with G - 1 degrees of freedom, since the points of a trial are no independent evidence; of the
    peak on the log scale. None with one trial, and for the peak where a refit has none. In simulation with 3 trials
    the 95 % intervals of a, b and the peak cover 93-96 %. None when the points cannot tell a from b.
    """
    trials = [
        (np.sqrt(np.asarray(x, dtype=np.float64)), np.asarray(y, dtype=np.float64))
        for x, y in zip(kl, gain, strict=True)
    ]
    weighted = (
        [np.ones(len(d)) for d, _ in trials] if weights is None else [np.asarray(w, dtype=np.float64) for w in weights]
    )
    whole = _solve(trials, weighted)
    if whole is None:
        return None
    count = len(trials)
    rest = [[index for index in range(count) if index != left] for left in range(count)] if count > 1 else []
    refits = [_solve([trials[i] for i in kept], [weighted[i] for i in kept]) for kept in rest]
    known = [refit for refit in refits if refit is not None]
    complete = count > 1 and len(known) == count
    a, b = (
        _jackknifed(float(whole[i]), [float(refit[i]) for refit in known] if complete else [], count, level)
        for i in (0, 1)
    )
    peak = None
    if (b.value if b.low is None else b.low) > 0:
        log_peak = 2 * (a.value / b.value - 1)
        others = (
            [2 * (float(refit[0] / refit[1]) - 1) for refit in known]
            if complete and all(refit[1] > 0 for refit in known)
            else []
        )
        peak = _exponential(_jackknifed(log_peak, others, count, level))
    d, y, w = (np.concatenate(parts) for parts in ([d for d, _ in trials], [y for _, y in trials], weighted))
    residual = math.sqrt(float(w @ (y - _design(d) @ whole) ** 2 / w.sum()))
    gain_there = b.value * math.sqrt(peak.value) if peak is not None else None
    return Law(a, b, peak, gain_there, float(d.max()) ** 2, len(d), residual)


def _design(d: Array) -> Array:
    """Columns d and -d log d, 0 at d = 0; shape (N, 2)."""
    logged = np.log(d, out=np.zeros_like(d), where=d > 0)
    return np.column_stack([d, -d * logged])


def _solve(trials: Sequence[tuple[Array, Array]], weights: Sequence[Array]) -> Array | None:
    d, y, w = (
        np.concatenate([d for d, _ in trials]),
        np.concatenate([y for _, y in trials]),
        np.sqrt(np.concatenate(list(weights))),
    )
    found, _, rank, singular = np.linalg.lstsq(_design(d) * w[:, None], y * w, rcond=None)
    if rank < 2 or singular[-1] < 1e-6 * singular[0] or not np.isfinite(found).all():
        return None
    result: Array = found
    return result


def _jackknifed(value: float, others: list[float], count: int, level: float) -> Estimate:
    if not others:
        return Estimate(value, None, None, count, 0, "none")
    from scipy.special import stdtrit

    spread = math.sqrt((count - 1) / count * float(((np.asarray(others) - np.mean(others)) ** 2).sum()))
    half = float(stdtrit(count - 1, (1 + level) / 2)) * spread
    return Estimate(value, value - half, value + half, count, 0, "jackknife")


def _exponential(logged: Estimate) -> Estimate | None:
    """Back from the log scale; None where the peak is out of every range of numbers, as b is almost 0."""
    ends = [logged.value] + [end for end in (logged.low, logged.high) if end is not None]
    if logged.value > 50:
        return None
    low, high = (math.exp(logged.low), math.exp(min(logged.high, 700.0))) if len(ends) == 3 else (None, None)  # type: ignore[arg-type,type-var]
    return Estimate(math.exp(logged.value), low, high, logged.seeds, 0, logged.method)


@dataclass(frozen=True)
class Alarm:
    """Where over-optimisation began in one trial: gold turned down while the proxy went on rising."""

    step: float
    """Gradient step of the highest gold."""
    kl: float
    """Trend of KL there."""
    gold: float
    proxy: float
    seen_step: float
    """Where the fall from there first exceeded what noise can do."""
    seen_kl: float


def alarm(steps: Array, kl: Array, gold: Array, proxy: Array, level: float = FALSE_ALARMS) -> Alarm | None:
    """The KL at which gold turns down while the proxy still rises, or None where no fall stands out from the noise.

    Gold and proxy are running means over a tenth of the records (5 at least). The fall from the highest gold to a
    later one must exceed the range that `level` of series without any trend would show: Bonferroni over pairs of
    means that overlap by three quarters, with the noise taken from differences of neighbouring records.
    From the highest gold to there the proxy must have risen. In simulation without a trend 1-3 % of series
    raise it. Shapes: (N,) in any order; fewer than 10 complete records raise none.
    """
    columns = np.vstack([np.asarray(one, dtype=np.float64) for one in (steps, kl, gold, proxy)])
    columns = columns[:, np.isfinite(columns).all(axis=0)]
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    n = columns.shape[1]
    if n < 2 * SMOOTH:
        return None
    window = max(SMOOTH, n // 10) | 1
    noise = math.sqrt(float((np.diff(columns[2]) ** 2).mean()) / 2)
    smooth = running_mean(columns[1:], window)
    levels, weights = isotonic(np.maximum(columns[1], 0.0))
    trend = np.repeat(levels, weights.astype(np.int64))
    inner = np.arange(window // 2, n - window // 2)
    peak = int(inner[smooth[1, inner].argmax()])
    fallen = smooth[1, peak] - smooth[1] > _critical_range(4 * n // window, level) * noise / math.sqrt(window)
    after = [i for i in inner[inner > peak] if fallen[i] and smooth[2, i] > smooth[2, peak]]
    if not after:
        return None
    seen = after[0]
    at = [
        float(value)
        for value in (columns[0, peak], trend[peak], smooth[1, peak], smooth[2, peak], columns[0, seen], trend[seen])
    ]
    return Alarm(*at)


def _critical_range(means: int, level: float) -> float:
    """Range of so many means of unit noise that is exceeded with a probability of at most `level`."""
    pairs = means * (means - 1) / 2
    return math.sqrt(2) * NormalDist().inv_cdf(1 - level / (2 * max(1.0, pairs)))
