"""Series of several trials on one grid of gradient steps, so that a mean over seeds averages like with like.

Trials need not record at the same steps: a target-KL stop takes fewer gradient steps per update, and a trial
may end early. Averaging what happens to share a step would then compare different moments, or drop most records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
    def count(self) -> NDArray[np.int64]:
        """(G,) series that are running at each point."""
        return np.asarray(np.isfinite(self.values).sum(axis=0), dtype=np.int64)

    @property
    def whole(self) -> NDArray[np.bool_]:
        """(G,) where all series are running: only there does a mean over them speak of the same seeds throughout."""
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
    union = (
        np.unique(np.concatenate([np.asarray(series_steps, dtype=np.float64) for series_steps in steps]))
        if len(steps)
        else np.zeros(0)
    )
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
    grid = np.asarray(grid, dtype=np.float64)
    edges = (grid[1:] + grid[:-1]) / 2
    rows = np.full((len(steps), len(grid)), np.nan)
    for row, at, value in zip(rows, steps, values, strict=True):
        at, value = np.asarray(at, dtype=np.float64), np.asarray(value, dtype=np.float64)
        known = np.isfinite(value)
        at, value = at[known], value[known]
        if not len(at) or not len(grid):
            continue
        order = np.argsort(at, kind="stable")
        at, value = at[order], value[order]
        cell = np.searchsorted(edges, at, side="left")
        total = np.bincount(cell, weights=value, minlength=len(grid))
        held = np.bincount(cell, minlength=len(grid))
        row[:] = np.interp(grid, at, value, left=np.nan, right=np.nan)
        row[held > 0] = total[held > 0] / held[held > 0]
    return Aligned(grid, rows)
