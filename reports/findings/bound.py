"""The best that any policy can reach at a given drift from the reference, whatever trained it. Pure functions, and the
samples they need.

Of all policies within KL nats per sequence of the reference, ``ref * exp(b r)`` has the highest mean of r, with b
such that it uses up the KL (Donsker and Varadhan; Korbak 2022). Its mean and its KL follow from samples of the
reference alone, weighted by ``exp(b r)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import Gone
from pipeline.run.store import file_in
from reports.records.load import StudyRecords

Array = NDArray[np.float64]
LEAST_EFFECTIVE = 30.0
"""Effective samples below which a reweighted mean is not shown."""
_STRENGTHS = np.geomspace(0.01, 30.0, 120)
_Z = 1.959963984540054


@dataclass(frozen=True)
class Path:
    """What reweighting the reference's samples ever more strongly gives; all arrays (B,), from no drift on."""

    strength: Array
    """b, per unit of the score that weighs: 1 / beta for a reward that PPO is trained on."""
    kl: Array
    """nats per sequence."""
    value: Array
    """Weighted mean of the score that is shown."""
    low: Array
    high: Array
    """95 % interval of `value` from the samples' number, at the same KL (at the same b where another score weighs)."""
    effective: Array
    """Samples that still count: 1 / sum of squared weights."""


@dataclass(frozen=True)
class ReferenceScores:
    """Scores of the reference's own samples on training prompts, as the reward stage left them."""

    gold: Array
    """(N,) judge points."""
    proxy: Array
    """(M,) std of reference samples; of completions that the proxy was not trained on."""
    proxy_gold: Array
    """(M,) judge points of the same completions."""
    gold_prompts: NDArray[np.intp]
    """(N,) numbers of the prompts that `gold` is about: samples of one prompt are no independent evidence."""
    proxy_prompts: NDArray[np.intp]
    """(M,) the same for `proxy`."""


def tilted(weighing: Array, shown: Array | None = None, groups: NDArray[np.intp] | None = None) -> Path:
    """The path of ``ref * exp(b * weighing)`` and the mean of `shown` on it; by default of `weighing` itself: then it
    is the bound.

    ``KL(b) = b E_b[r] - log E_ref[exp(b r)]``. Samples of all prompts are pooled; that also lets the bound shift
    weight between prompts, which no policy can, so that it is never too low for that. The path ends where fewer than
    `LEAST_EFFECTIVE` samples count. Interval: delta method, over `groups` of samples that are independent of each other
    (the prompts; by default every sample is one); of the bound at fixed KL it is that of ``log E_ref[exp(b r)] / b``.
    Shapes: (N,) all. Raises `ValueError` without samples or for scores that do not vary.
    """
    n = len(weighing)
    codes = np.arange(n) if groups is None else groups

    def error_of(influence: Array) -> float:
        """Standard error of a sum of independent groups, from what every sample moves it by (N,)."""
        return float(np.sqrt((np.bincount(codes, influence) ** 2).sum()))

    spread = float(weighing.std()) if n else 0.0
    if not spread > 0:
        raise ValueError("scores of at least two samples that differ are needed")
    values = weighing if shown is None else shown
    rows = [(0.0, 0.0, float(values.mean()), error_of((values - values.mean()) / n), float(n))]
    for b in _STRENGTHS / spread:
        tilt = b * (weighing - weighing.max())
        weights = np.exp(tilt)
        total = float(weights.sum())
        weights /= total
        effective = 1.0 / float((weights**2).sum())
        if effective < LEAST_EFFECTIVE:
            break
        # Not `weights @ values`: BLAS sums in another order with another number of threads, and reports are equal to
        # the byte.
        mean = float((weights * values).sum())
        kl = float((weights * tilt).sum()) - float(np.log(total / n))
        error = error_of(weights - 1 / n) / b if shown is None else error_of(weights * (values - mean))
        rows.append((float(b), max(0.0, kl), mean, error, effective))
    strength, kls, means, errors, effectives = (np.array(column) for column in zip(*rows, strict=True))
    return Path(strength, kls, means, means - _Z * errors, means + _Z * errors, effectives)


def best_win_rate(most: float, points: int = 300) -> tuple[Array, Array]:
    """(KL, win rate) that no policy can exceed against the reference, for KL from 0 to at least `most` nats.

    The share u of the reference's completions that one beats is uniform on [0, 1] under the reference (ties broken
    at random), so the tilt by u has the density ``c exp(c u) / (exp(c) - 1)``, whatever the judge. (Under a
    cyclic judge u is less spread than that, Landau 1953, so the bound holds as well.) Best of n lies close below it.

    >>> kl, rate = best_win_rate(3.0)
    >>> float(rate[0]), bool((np.diff(rate) > 0).all())
    (0.5, True)
    """
    fine, coarse = np.linspace(-3.0, 6.0, points), np.linspace(6.0, max(most, 6.0) + 2.0, points)
    c = np.concatenate([[0.0], np.exp(fine), np.exp(coarse[1:])])
    small, bounded = c < 1e-9, np.minimum(c, 500.0)
    safe = np.where(small, 1.0, bounded)
    rate = np.where(small, 0.5, -1 / np.expm1(-safe) - 1 / np.where(small, 1.0, c))
    # log((exp(c) - 1) / c) = c + log(1 - exp(-c)) - log(c)
    kl = np.where(small, 0.0, c * rate - c - np.log(-np.expm1(-safe)) + np.log(np.where(small, 1.0, c)))
    return np.maximum(kl, 0.0), rate


def best_of(n: int, scores: Array | None = None) -> tuple[float, float]:
    """Best of n reference samples: its KL, log n - (n - 1) / n nats at most, and its win rate n / (n + 1), or the mean
    best of `scores`.

    >>> best_of(1), round(best_of(4)[0], 3), best_of(4)[1]
    ((0.0, 0.5), 0.636, 0.8)
    """
    kl = float(np.log(n) - (n - 1) / n)
    if scores is None:
        return kl, n / (n + 1)
    rank = np.arange(len(scores) + 1) / len(scores)
    return kl, float((np.diff(rank**n) * np.sort(scores)).sum())


def reference_scores(records: StudyRecords) -> ReferenceScores | None:
    """What the reward stage that most trials share scored, or None where its tables are no longer in the store."""
    stages = [entry for entry in records.upstream if entry["stage"] == "reward"]
    if not stages:
        return None
    where = str(max(stages, key=lambda entry: int(entry["trials"]))["path"])
    samples = table_of(records, where, "reference_samples.parquet")
    if samples is None:
        return None
    proxy, own = samples["proxy"].to_numpy(dtype=np.float64), samples["gold"].to_numpy(dtype=np.float64)
    gold, prompts = [own], [samples["prompt"]]
    if (pairs := table_of(records, where, "pairs.parquet")) is not None:
        again = (
            pairs["heldout"].to_numpy(dtype=bool) if "source" in samples.columns else np.zeros(len(pairs), dtype=bool)
        )
        gold += [pairs[column].to_numpy(dtype=np.float64)[~again] for column in ("gold_first", "gold_second")]
        prompts += [pairs["prompt"][~again]] * 2
    whole, numbers = np.concatenate(gold), pd.factorize(pd.concat(prompts))[0]
    known, finite = np.isfinite(whole), np.isfinite(proxy) & np.isfinite(own)
    return ReferenceScores(whole[known], proxy[finite], own[finite], numbers[known], numbers[: len(own)][finite])


def table_of(records: StudyRecords, where: str, name: str) -> pd.DataFrame | None:
    """A table of a shared stage, None where there is none in the store."""
    try:
        frame: pd.DataFrame = pq.read_table(file_in(records.folder, where, name)).to_pandas()
    except Gone:
        return None
    return frame
