"""The highest point of a noisy curve along training, without the upward bias of a maximum. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.statistics.drift import complete

Array = NDArray[np.float64]
BLOCKS = 16
"""At most; a block is a mean over successive records."""
LEAST = 4
"""Records in a block: two in either half."""


@dataclass(frozen=True)
class Peak:
    """Where one trial's curve was highest, how high, and how far it fell from there to the last block."""

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
