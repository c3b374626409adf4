"""The start of over-optimisation: gold turns down for good while the proxy goes on rising, beyond what noise can do.

Pure functions over the trajectories of a study. KL is in nats per sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reports.statistics.series import SMOOTH, complete, running_mean, window_of

Array = NDArray[np.float64]
FALSE_ALARMS = 0.05
"""Share of studies without a trend that may raise any alarm."""
BLOCKS = 10
LEAST = 2 * BLOCKS
"""Records of a trial below which it raises none."""
NULLS = ((1.0, 0.6), (0.3, 0.85))
"""Noise that the alarm has to withstand: the share of its variance that is correlated, and that part's correlation
from record to record. The second is white noise on a policy that wanders slowly, as real trials look."""
STUDIES = 4_000
"""Simulated studies; fewer with many arms, to bound the work."""
_FEWEST_STUDIES, _MOST_ARMS = 1_000, 80_000
_RNG_SEED = 20_170_720
_LONGEST = 512
"""Records beyond which the correlation of noise within a block no longer matters."""


@dataclass(frozen=True)
class Updates:
    """Records of one trial at its updates; shapes (N,), in any order."""

    steps: Array
    kl: Array
    gold: Array
    proxy: Array


@dataclass(frozen=True)
class Alarm:
    """The start of over-optimisation in one trial: gold turned down while the proxy went on rising."""

    step: float
    """Gradient step of the highest gold."""
    kl: float
    """Mean KL of the `SMOOTH` records around it."""
    gold: float
    proxy: float


def alarms(arms: Sequence[Sequence[Updates]], level: float = FALSE_ALARMS) -> list[list[Alarm | None]]:
    """Find where gold turned down while the proxy still rose, for every trial of every arm; None without a fall that
    stands out from the noise.

    Each series is cut into `BLOCKS` blocks of equal length, and the fall from its highest block mean to a later one is
    divided by the noise of a block mean. The noise comes from second differences of neighbouring block means, which a
    steady rise or fall does not enter, pooled over the seeds of an arm. The limit is the `1 - level` quantile of the
    largest such fall in studies of this shape whose gold has no trend, by simulation under the noise of `NULLS`; the
    larger limit counts. From the highest block to the fallen one the proxy must have risen.

    Fewer than `LEAST` complete records raise none. ``methods.j2`` states how often noise raises an alarm, and how often
    a real bend is found.
    """
    cleaned = [[Updates(*complete(*vars(trial).values())) for trial in trials] for trials in arms]
    usable = [[trial for trial in trials if len(trial.steps) >= LEAST] for trials in cleaned]
    shape = tuple(tuple(min(len(trial.steps), _LONGEST) for trial in trials) for trials in usable if trials)
    limit = critical_fall(shape, level) if shape else 0.0
    return [_of_arm(trials, limit) for trials in cleaned]


def block_means(values: Array, blocks: int = BLOCKS) -> Array:
    """Means of so many blocks of equal length; shapes (..., N) and (..., blocks), N at least `blocks`."""
    edges = _edges(values.shape[-1], blocks)
    return np.asarray(np.add.reduceat(values, edges[:-1], axis=-1) / np.diff(edges))


@lru_cache(maxsize=64)
def critical_fall(shape: tuple[tuple[int, ...], ...], level: float = FALSE_ALARMS) -> float:
    """The largest fall of gold in a study without a trend, in units of the noise, that `level` of such studies exceed.

    `shape`: the records of each trial, by arm. Block means of Gaussian noise are drawn from their exact covariance.
    """
    return max(float(np.quantile(_largest_falls(shape, null), 1 - level)) for null in NULLS)


def _largest_falls(shape: tuple[tuple[int, ...], ...], null: tuple[float, float]) -> Array:
    """Draw the largest fall of each simulated study: (R,), R at most `STUDIES`."""
    rng = np.random.default_rng(_RNG_SEED)
    studies = max(_FEWEST_STUDIES, min(STUDIES, _MOST_ARMS // len(shape)))
    largest: Array = np.zeros(studies)
    for lengths, arms in Counter(shape).items():
        roots = [_root(records, null) * np.sqrt(records / BLOCKS) for records in lengths]
        for _ in range(arms):
            means = np.stack([rng.standard_normal((studies, BLOCKS)) @ root.T for root in roots])
            np.maximum(largest, (_largest_fall(means) / _noise(_variance(means))).max(0), out=largest)
    return largest


@lru_cache(maxsize=64)
def _root(records: int, null: tuple[float, float]) -> Array:
    """A matrix whose product with independent normal numbers is distributed as the block means of noise of variance
    1; (BLOCKS, BLOCKS)."""
    share, correlation = null
    lag = np.abs(np.subtract.outer(np.arange(records), np.arange(records)))
    covariance = share * correlation**lag + (1 - share) * np.eye(records)
    of_blocks: Array = np.asarray(block_means(block_means(covariance).T), dtype=np.float64)
    return np.asarray(np.linalg.cholesky(of_blocks), dtype=np.float64)


def _noise(variances: Array) -> Array:
    """Standard deviations from the variances of an arm's trials, the first axis: pooled, but of no trial smaller than
    its own."""
    return np.asarray(np.sqrt(np.maximum(variances.mean(0), variances)))


def _variance(means: Array) -> Array:
    """Variance of a block mean from second differences of neighbours; shapes (..., B) and (...)."""
    return np.asarray((np.diff(means, 2, axis=-1) ** 2).mean(-1) / 6)


def _largest_fall(means: Array) -> Array:
    """Return the fall from the highest mean to the lowest one after it; shapes (..., B) and (...)."""
    lowest_after = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    highest = means.argmax(-1)
    return np.asarray(means.max(-1) - np.take_along_axis(lowest_after, highest[..., None], axis=-1)[..., 0])


def _of_arm(trials: Sequence[Updates], limit: float) -> list[Alarm | None]:
    usable = [trial for trial in trials if len(trial.steps) >= LEAST]
    if not usable:
        return [None] * len(trials)
    length = np.array([len(trial.gold) / BLOCKS for trial in usable])
    noise = _noise(np.array([_variance(block_means(trial.gold)) for trial in usable]) * length) / np.sqrt(length)
    found = iter([_turned(trial, limit * float(own)) for trial, own in zip(usable, noise, strict=True)])
    return [next(found) if len(trial.steps) >= LEAST else None for trial in trials]


def _turned(trial: Updates, limit: float) -> Alarm | None:
    """`limit`: the fall of a block mean that noise explains."""
    gold, proxy = block_means(trial.gold), block_means(trial.proxy)
    edges = _edges(len(trial.gold), BLOCKS)
    top = int(gold.argmax())
    fallen = gold[top] - gold > limit
    after = [block for block in range(top + 1, BLOCKS) if fallen[block] and proxy[block] > proxy[top]]
    if not after:
        return None
    window = window_of(len(trial.gold))
    smooth_gold, smooth_proxy = running_mean(np.stack([trial.gold, trial.proxy]), window)
    kl = running_mean(trial.kl, SMOOTH)
    inner = np.arange(window // 2, max(int(edges[after[0]]), window // 2 + 1))
    turn = int(inner[smooth_gold[inner].argmax()])
    at = (trial.steps[turn], kl[turn], smooth_gold[turn], smooth_proxy[turn])
    return Alarm(*(float(value) for value in at))


def _edges(records: int, blocks: int) -> NDArray[np.int64]:
    return np.round(np.linspace(0, records, blocks + 1)).astype(np.int64)
