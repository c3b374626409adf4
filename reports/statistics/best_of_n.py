"""Best of n: of n samples of the reference the one with the highest score, averaged over all choices of n among the N
samples of a prompt. Exact, so nothing is drawn. Pure functions.

Shapes: P prompts, N samples of each.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.data.semantics import circle

Array = NDArray[np.float64]


def best_of(n: int, ranking: Array, shown: Array) -> Array:
    """(P,) mean of `shown` of the sample that `ranking` puts first among n; both (P, N), 1 <= n <= N.

    The i-th lowest of N samples is the highest of C(i - 1, n - 1) choices out of C(N, n). Samples of equal rank are
    equally likely to be taken, so each counts as their mean.
    """
    order = np.argsort(ranking, axis=1, kind="stable")
    ranked, values = (np.take_along_axis(table, order, 1) for table in (ranking, shown))
    return np.asarray((_tied(ranked, values) * _weights(n, ranking.shape[1])).sum(1))


def win_rate(n: int, ranking: Array, judged: Array, endings: Array | None = None) -> Array:
    """(P,) how often the sample that `ranking` puts first among n beats one of the N - n others by `judged`, ties
    counting half; both (P, N), 1 <= n < N. The others are no part of the choice, as an answer of the reference is not.

    Equal ranks are taken in the order of the samples. `endings` (P, N): what a cyclic judge sees beside its points
    (`pipeline.data.semantics`).
    """
    order = np.argsort(ranking, axis=1, kind="stable")
    scores, size = np.take_along_axis(judged, order, 1), ranking.shape[1]
    ahead = scores[:, :, None] - scores[:, None, :]
    if endings is not None:
        ended = np.take_along_axis(endings, order, 1)
        ahead = ahead + circle(ended[:, :, None], ended[:, None, :])
    beats = (np.sign(ahead) + 1) / 2
    place = np.arange(size)
    # Where i is the highest of a choice, a higher j is outside; a lower one is inside in (n - 1) / i of the choices.
    inside = (n - 1) / np.maximum(place, 1)[:, None]
    outside = np.where(place[None, :] > place[:, None], 1.0, 1.0 - inside)
    np.fill_diagonal(outside, 0.0)
    each = (beats * np.clip(outside, 0.0, 1.0)).sum(2) / (size - n)
    return np.asarray((each * _weights(n, size)).sum(1))


def _weights(n: int, size: int) -> Array:
    """(N,) how often each place, from the lowest, is the highest of n."""
    choices = math.comb(size, n)
    return np.array([math.comb(place, n - 1) / choices for place in range(size)])


def _tied(ranked: Array, values: Array) -> Array:
    """`values` (P, N), in ascending order of `ranked`, with the mean of equal ones in place of each."""
    starts = np.concatenate([np.ones((len(ranked), 1), dtype=bool), ranked[:, 1:] != ranked[:, :-1]], axis=1)
    runs = np.cumsum(starts.ravel()) - 1
    means = np.bincount(runs, values.ravel()) / np.bincount(runs)
    return np.asarray(means[runs].reshape(values.shape))
