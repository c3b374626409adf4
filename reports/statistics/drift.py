"""What a policy gained along its training, and how far it had drifted. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SMOOTH = 5
"""Records in a running mean, at least: one rollout's mean reward is too noisy to be shown or located."""


@dataclass(frozen=True)
class DriftPath:
    """KL and rewards of one trial over its gradient steps, smoothed; KL may overshoot and fall back."""

    steps: Array
    """(N,) ascending."""
    kl: Array
    """(N,) nats per sequence."""
    values: Mapping[str, Array]
    """Metric -> (N,)."""


def drift_path(steps: Array, kl: Array, values: Mapping[str, Array]) -> DriftPath | None:
    """Return running means over a tenth of the records (`SMOOTH` at least); None with fewer than two complete records.

    Shapes: (N,) each, in any order; a record with a non-finite number anywhere is left out.
    """
    columns = complete(steps, kl, *values.values())
    if columns.shape[1] < 2:
        return None
    smooth = running_mean(columns[1:], window_of(columns.shape[1]))
    return DriftPath(columns[0], smooth[0], dict(zip(values, smooth[1:], strict=True)))


def complete(*columns: Array) -> Array:
    """Return the records without a non-finite number, in the order of the first column, their steps; shapes (N,) each
    and (C, M)."""
    table = np.vstack([np.asarray(column, dtype=np.float64) for column in columns])
    table = table[:, np.isfinite(table).all(axis=0)]
    return np.asarray(table[:, np.argsort(table[0], kind="stable")])


def mean_path(paths: Sequence[DriftPath]) -> DriftPath | None:
    """Return the mean over trials at equal steps, as long as all of them were running; None where that is never."""
    if not paths:
        return None
    low, high = max(path.steps[0] for path in paths), min(path.steps[-1] for path in paths)
    steps = paths[0].steps[(paths[0].steps >= low) & (paths[0].steps <= high)]
    if len(steps) < 2:
        return None
    kl = np.mean([np.interp(steps, path.steps, path.kl) for path in paths], axis=0)
    keys = [key for key in paths[0].values if all(key in path.values for path in paths)]
    values = {key: np.mean([np.interp(steps, path.steps, path.values[key]) for path in paths], axis=0) for key in keys}
    return DriftPath(steps, kl, values)


def window_of(records: int) -> int:
    """Return the records in a running mean of so many: a tenth of them, and odd."""
    return max(SMOOTH, records // 10) | 1


def running_mean(rows: Array, window: int) -> Array:
    """Return centred means along the last axis; at the ends of what there is. Shapes: (..., N)."""
    n = rows.shape[-1]
    half = window // 2
    sums = np.concatenate([np.zeros((*rows.shape[:-1], 1)), np.cumsum(rows, axis=-1)], axis=-1)
    low, high = np.maximum(np.arange(n) - half, 0), np.minimum(np.arange(n) + half + 1, n)
    result: Array = (sums[..., high] - sums[..., low]) / (high - low)
    return result
