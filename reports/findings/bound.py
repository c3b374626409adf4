"""The best that any policy can reach at a given drift from the reference, whatever trained it, and the samples that
this follows from.

Of all policies within KL nats per sequence of the reference, ``ref * exp(b r)`` has the highest mean of r, with b
such that it uses up the KL (Donsker and Varadhan; Korbak 2022). Its mean and its KL follow from samples of the
reference alone, weighted by ``exp(b r)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
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
    """Scores reached by reweighting the reference's samples ever more strongly; arrays (B,), from no drift on."""

    kl: Array
    """nats per sequence."""
    value: Array
    """Weighted mean of the score."""
    low: Array
    high: Array
    """95 % interval of `value` from the samples' number, at the same KL."""
    effective: Array
    """Samples that still count: 1 / sum of squared weights."""


def tilted(scores: Array, groups: NDArray[np.intp] | None = None) -> Path:
    """Return the path of ``ref * exp(b * scores)``: the highest mean score of any policy at each KL.

    ``KL(b) = b E_b[r] - log E_ref[exp(b r)]``. Samples of all prompts and references are pooled; that also lets the
    bound shift weight between these, which no policy can, so that it is never too low for that. The path ends where
    fewer than `LEAST_EFFECTIVE` samples count. Interval at fixed KL: that of ``log E_ref[exp(b r)] / b`` by the delta
    method, over `groups` of samples that are independent of each other (the prompts; by default every sample is one).
    Shapes: (N,) all. Raises `ValueError` without samples or for scores that do not vary.
    """
    n = len(scores)
    codes = np.arange(n) if groups is None else groups

    def error_of(influence: Array) -> float:
        """Standard error of a sum of independent groups, from each sample's effect on it (N,)."""
        return float(np.sqrt((np.bincount(codes, influence) ** 2).sum()))

    spread = float(scores.std()) if n else 0.0
    if not spread > 0:
        raise ValueError("scores of at least two samples that differ are needed")
    rows = [(0.0, float(scores.mean()), error_of((scores - scores.mean()) / n), float(n))]
    for b in _STRENGTHS / spread:
        tilt = b * (scores - scores.max())
        weights = np.exp(tilt)
        total = float(weights.sum())
        weights /= total
        effective = 1.0 / float((weights**2).sum())
        if effective < LEAST_EFFECTIVE:
            break
        # Not `weights @ scores`: BLAS sums in another order with another number of threads, and reports are equal to
        # the byte.
        mean = float((weights * scores).sum())
        kl = float((weights * tilt).sum()) - float(np.log(total / n))
        rows.append((max(0.0, kl), mean, error_of(weights - 1 / n) / b, effective))
    kls, means, errors, effectives = (np.array(column) for column in zip(*rows, strict=True))
    return Path(kls, means, means - _Z * errors, means + _Z * errors, effectives)


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


def reference_scores(records: StudyRecords) -> tuple[Array, NDArray[np.intp]] | None:
    """Return the judge's scores of the references' answers to the held-out prompts of the baseline's task, judge
    points, and the prompt of each, (N,); None where their tables are no longer in the store."""
    others = [one.stages for (arm, _), one in records.records.items() if arm in records.other_tasks]
    left = {stages["reference"].path for stages in others if "reference" in stages}
    paths = [str(entry["path"]) for entry in records.upstream if entry["stage"] == "reference"]
    found = (_draws(records, path) for path in paths if path not in left)
    tables = {table["gold"].to_numpy().tobytes(): table for table in found if table is not None}
    if not tables:
        return None
    whole = pd.concat(tables.values(), ignore_index=True)  # references that differ by the reward alone have one table
    return whole["gold"].to_numpy(dtype=np.float64), pd.factorize(whole["prompt"])[0]


def _draws(records: StudyRecords, where: str) -> pd.DataFrame | None:
    """Prompt and gold of every answer of a reference that was judged; None where it is no longer in the store."""
    try:
        path = file_in(records.folder, where, "draws.parquet")
    except Gone:
        return None
    return pd.read_parquet(path, columns=["prompt", "gold"]).dropna()


def choosing_arms(records: StudyRecords) -> dict[str, int]:
    """Arms that answer with the best of several samples by the proxy, and of how many: their KL is an upper bound."""
    return {arm: one.evaluate.best_of for arm, one in records.configs.items() if one.evaluate.best_of > 1}


def arms_with_another_reference(records: StudyRecords) -> list[str]:
    """Arms whose reference is rounded to another number of bits than the baseline's."""
    bits = {arm: config.adapter.quantize for arm, config in records.configs.items()}
    return [arm for arm, how in bits.items() if how != bits[records.study.baseline]]
