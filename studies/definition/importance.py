"""How much of a search's outcome each knob explains, with what certainty, and from how many trials on that can be said.

A regression of ranks, not PED-ANOVA: that compares the best quarter of the trials with all, four or five trials of 18,
and its largest share is at least 0.69 in 23 % of searches in which no knob matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from studies.definition.search import Tried
from studies.definition.space import Dimension, Objective

Array = NDArray[np.float64]

LEVEL = 0.95
PERMUTATIONS = 1999
RESAMPLES = 499
TRIALS, TRIALS_PER_COLUMN = 18, 1.5
"""`needed` by simulation: from 24, 30 and 36 trials of 2, 4 and 6 knobs on, spread at random, a knob that explains half
of the variance and acts along a line or a parabola is found in 83 to 90 % of searches (600 to 1,000 a case), and any
knob by chance in at most 6 % of those in which none matters (1,000). TPE crowds where it is good, so that what is left
to see is less: 51 % at 30 trials of 4 knobs, 69 % at 60; by chance at most 6 % as well (200)."""


@dataclass(frozen=True)
class Importance:
    """What one knob explains of one objective."""

    metric: str
    knob: str
    share: float
    """Fall of the adjusted R² when the knob is left out, fraction; below 0 by chance where it explains nothing."""
    low: float
    high: float
    """95 % interval, percentiles of resampled trials; in simulation it covers 89 to 95 % where a knob explains
    half of the variance and 99 % where it explains nothing (150 searches each; 4 knobs, 30 and 60 trials; 6, 36)."""
    p: float
    """Probability that the most important of all knobs would seem as important if none mattered: family-wise."""


@dataclass(frozen=True)
class Importances:
    """What the knobs of a search explain; without rows below `needed` trials, or where all trials are alike."""

    trials: int
    """That were ranked: all but the failed."""
    needed: int
    knobs: int
    rows: tuple[Importance, ...] = ()
    """By objective, the largest share first."""

    @property
    def absent(self) -> str:
        """Why no importance is stated; empty where some are."""
        if self.rows:
            return ""
        if self.trials >= self.needed:
            return "The importance of knobs is not estimated: no trial differs from another on the objective."
        return (
            f"The importance of knobs is not estimated: the search has {self.trials} ranked trials, and {self.needed}"
            f" are needed for {self.knobs} {'knobs' if self.knobs > 1 else 'knob'}. From there on, a knob that explains"
            " half of the variance is found in at least 80 % of searches whose trials are spread at random. To learn"
            " which knob matters from fewer trials, use factors or a grid."
        )


def importances(trials: Sequence[Tried], aims: Sequence[Objective], space: Mapping[str, Dimension]) -> Importances:
    """Regress the rank of each objective on the ranks of all knobs and their squares (on levels, of a list of values).

    Infeasible trials rank below all feasible ones, equal among themselves. The p-values permute the outcomes over the
    trials and compare each knob with the most significant one of every permutation; random numbers are fixed.
    """
    usable = [trial for trial in trials if _usable(trial, aims, space)]
    found = Importances(len(usable), needed(space), len(space))
    if found.trials < found.needed:
        return found
    losses = [_losses(usable, aim) for aim in aims]
    knobs = [np.array([_number(space[key], trial.overrides[key]) for trial in usable]) for key in space]
    levels = [dimension.values is not None for dimension in space.values()]
    varied = [loss for loss in losses if len(set(loss)) > 1]
    if not varied:
        return found
    tests = _p_values(knobs, levels, varied)
    shares = [_resampled(knobs, levels, loss) for loss in varied]
    named = [aim.metric for aim, loss in zip(aims, losses, strict=True) if len(set(loss)) > 1]
    rows = [
        Importance(metric, knob, float(share[at, 0]), float(share[at, 1]), float(share[at, 2]), float(p[at]))
        for metric, p, share in zip(named, tests, shares, strict=True)
        for at, knob in enumerate(space)
    ]
    ranked = sorted(rows, key=lambda row: (named.index(row.metric), -row.share, row.knob))
    return replace(found, rows=tuple(ranked))


def needed(space: Mapping[str, Dimension]) -> int:
    """Trials from which importances are stated; see `TRIALS`."""
    columns = sum(len(one.values) - 1 if one.values is not None else 2 for one in space.values())
    return TRIALS + math.ceil(TRIALS_PER_COLUMN * columns)


def adjusted_shares(knobs: Sequence[Array], levels: Sequence[bool], outcome: Array) -> Array:
    """Fall of the adjusted R² of `ranks(outcome)` when each knob is left out, (K,). `knobs`: K arrays (N,).

    Adjusted (Ezekiel 1930): 1 - (1 - R²)(N - 1)/(N - 1 - p) with p columns, so that a knob without effect has an
    expectation near 0.
    """
    designs, y, n = _designs(knobs, levels), _standard(ranks(outcome))[:, None], len(outcome)
    whole = _adjusted(*_explained(designs, y), n)
    return np.array([(whole - _adjusted(*_explained(_but(designs, at), y), n))[0] for at in range(len(designs))])


def tail_probabilities(knobs: Sequence[Array], levels: Sequence[bool], outcomes: Array) -> Array:
    """P(F as large) of the partial F test of each knob for each column of standardised `outcomes` (N, M): (K, M)."""
    from scipy.special import fdtrc

    designs, n = _designs(knobs, levels), len(outcomes)
    whole, columns = _explained(designs, outcomes)
    left = n - 1 - columns
    p = np.ones((len(designs), outcomes.shape[1]))
    for at in range(len(designs)):
        rest, fewer = _explained(_but(designs, at), outcomes)
        if columns > fewer and left > 0:
            p[at] = fdtrc(columns - fewer, left, (whole - rest) / (columns - fewer) / ((1 - whole) / left + 1e-12))
    return p


def ranks(values: Array) -> Array:
    """Ranks from 1, the mean rank of equal values."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)


def _usable(trial: Tried, aims: Sequence[Objective], space: Mapping[str, Dimension]) -> bool:
    measured = not trial.feasible or all(aim.metric in trial.values for aim in aims)
    return trial.status != "failed" and measured and trial.overrides.keys() >= space.keys()


def _losses(trials: Sequence[Tried], aim: Objective) -> Array:
    sign = 1.0 if aim.direction == "minimize" else -1.0
    return np.array([sign * trial.values[aim.metric] if trial.feasible else math.inf for trial in trials])


def _number(dimension: Dimension, value: object) -> float:
    return float(dimension.values.index(value)) if dimension.values is not None else float(value)  # type: ignore[arg-type]


def _p_values(knobs: Sequence[Array], levels: Sequence[bool], losses: Sequence[Array]) -> list[Array]:
    """Of every objective (K,), against the smallest tail probability over knobs and objectives of each permutation."""
    rng = np.random.default_rng(0)
    orders = [np.arange(len(losses[0])), *(rng.permutation(len(losses[0])) for _ in range(PERMUTATIONS))]
    order = np.stack(orders, axis=1)
    tails = [tail_probabilities(knobs, levels, _standard(ranks(loss))[order]) for loss in losses]
    smallest = np.min([tail.min(axis=0) for tail in tails], axis=0)[1:]
    return [np.array([(1 + (smallest <= own + 1e-12).sum()) / (1 + PERMUTATIONS) for own in t[:, 0]]) for t in tails]


def _resampled(knobs: Sequence[Array], levels: Sequence[bool], loss: Array) -> Array:
    """Share, low and high of each knob, (K, 3); trials are resampled with replacement."""
    rng, n = np.random.default_rng(0), len(loss)
    draws = [rng.integers(n, size=n) for _ in range(RESAMPLES)]
    shares = [adjusted_shares([knob[i] for knob in knobs], levels, loss[i]) for i in draws if len(set(loss[i])) > 1]
    low, high = np.quantile(np.stack(shares), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0).clip(0, 1)
    return np.stack([adjusted_shares(knobs, levels, loss), low, high], axis=1)


def _designs(knobs: Sequence[Array], levels: Sequence[bool]) -> list[Array]:
    """Centred columns of each knob, (N, columns)."""
    designs = []
    for knob, level in zip(knobs, levels, strict=True):
        if level:
            columns = (knob[:, None] == np.unique(knob)[None, 1:]).astype(np.float64)
        else:
            rank = _standard(ranks(knob))
            columns = np.stack([rank, rank**2 * len(rank)], axis=1)
        designs.append(columns - columns.mean(axis=0))
    return designs


def _but(designs: Sequence[Array], left_out: int) -> list[Array]:
    return [design for at, design in enumerate(designs) if at != left_out]


def _explained(designs: Sequence[Array], outcomes: Array) -> tuple[Array, int]:
    """R² of each standardised outcome (N, M) on all these columns, (M,), and the rank of the columns."""
    if not designs:
        return np.zeros(outcomes.shape[1]), 0
    u, size, _ = np.linalg.svd(np.concatenate(designs, axis=1), full_matrices=False)
    basis = u[:, size > 1e-9 * max(1.0, size.max(initial=0.0))]
    return np.asarray(((basis.T @ outcomes) ** 2).sum(axis=0)), basis.shape[1]


def _adjusted(r2: Array, columns: int, n: int) -> Array:
    return 1 - (1 - r2) * (n - 1) / max(1, n - 1 - columns)


def _standard(values: Array) -> Array:
    """Centred, of length 1; zeros where all are equal."""
    centred = values - values.mean()
    length = float(np.sqrt((centred**2).sum()))
    return np.asarray(centred / length if length else centred)
