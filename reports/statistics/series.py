"""Series of trials: on one grid of gradient steps, along the drift, and at their highest point. Pure functions.

On one grid a mean over seeds averages like with like: trials need not record at the same steps, since a target-KL stop
takes fewer gradient steps per update, and a trial may end early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
POINTS = 256


@dataclass(frozen=True)
class Aligned:
    """Several series on one grid; NaN where a series has not begun or has ended (censored), never filled in."""

    grid: Array
    """(G,) gradient steps, ascending."""
    values: Array
    """(S, G)."""

    @property
    def whole(self) -> NDArray[np.bool_]:
        """(G,) where all series are running: only there does a mean over them cover the same seeds throughout."""
        return np.asarray(np.isfinite(self.values).all(axis=0), dtype=np.bool_)

    @property
    def last(self) -> tuple[int, ...]:
        """Index of each series' last point; -1 for an empty one."""
        return tuple(int(finite[-1]) if len(finite := np.flatnonzero(np.isfinite(row))) else -1 for row in self.values)


def grid_of(steps: Sequence[Array], points: int = POINTS, multiple: int = 1) -> Array:
    """All steps that occur, or where these are more than `points`, centres of equal cells as wide as a whole number of
    `multiple` steps.

    The first cell begins with the first step, so that no update is cut in two. Give the gradient steps of an update as
    `multiple` for what swings within updates (the clip fraction does).
    """
    union = np.unique(np.concatenate([np.zeros(0), *steps]))
    if len(union) <= points:
        return union
    width = -(-(union[-1] - union[0] + 1) // (points * multiple)) * multiple
    return np.asarray(np.arange(union[0], union[-1] + 1, width) + (width - 1) / 2, dtype=np.float64)


def align(steps: Sequence[Array], values: Sequence[Array], grid: Array) -> Aligned:
    """Put each series on `grid`: the mean of the records in a point's cell, else linear interpolation between its
    neighbours.

    A cell reaches half way to the next grid point on either side. A point before a series' first record or
    after its last one is NaN unless a record lies in its cell: nothing is carried forward and nothing
    extrapolated. Records need no order; non-finite ones count as not recorded.
    """
    edges = (grid[1:] + grid[:-1]) / 2
    rows = np.full((len(steps), len(grid)), np.nan)
    for row, at, value in zip(rows, steps, values, strict=True):
        at, value = complete(at, value)
        if not len(at) or not len(grid):
            continue
        cell = np.searchsorted(edges, at, side="left")
        total = np.bincount(cell, weights=value, minlength=len(grid))
        held = np.bincount(cell, minlength=len(grid))
        row[:] = np.interp(grid, at, value, left=np.nan, right=np.nan)
        row[held > 0] = total[held > 0] / held[held > 0]
    return Aligned(grid, rows)


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
    return pd.DataFrame(rows.T).rolling(window, center=True, min_periods=1).mean().to_numpy().T.reshape(rows.shape)


BLOCKS = 16
"""Most blocks; a block is a mean over successive records."""
LEAST = 4
"""Records in a block: two in either half."""


@dataclass(frozen=True)
class Peak:
    """The highest point of one trial's curve: its place, its height, and the fall from there to the last block."""

    root_kl: float
    """Square root of the KL, nats per sequence."""
    value: float
    fall: float
    step: float


def peak(steps: Array, kl: Array, values: Array) -> Peak | None:
    """Return the peak of block means: one half of a block's records chooses its place, the other measures its height.

    Of the records in the order of steps, the even ones are one half and the odd ones the other. Each half chooses the
    block with its highest mean, b* = argmax_b mean(values in b), and the other half gives height, KL and fall
    (mean in b* - mean in the last block); the two results are averaged. The halves have noise of their own, so a height
    is that of a block and no lucky draw: on average it is the curve there, which is at most the curve's maximum.
    Shapes: (N,) each, in any order; a record with a non-finite number is left out. None with fewer than three blocks.
    """
    columns = complete(steps, kl, values)
    count = min(BLOCKS, columns.shape[1] // LEAST)
    if count < 3:
        return None
    blocks = np.array_split(np.arange(columns.shape[1]), count)
    halves = [np.stack([columns[:, rows[half::2]].mean(axis=1) for rows in blocks]) for half in (0, 1)]
    found = []
    for chosen, measured in (halves, halves[::-1]):
        at = int(chosen[:, 2].argmax())
        step, drift, height = measured[at]
        found.append((np.sqrt(max(drift, 0.0)), height, height - measured[-1, 2], step))
    return Peak(*(float(number) for number in np.mean(found, axis=0)))
