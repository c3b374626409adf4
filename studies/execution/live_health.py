"""The health of trials while they run, read from the tail of each metrics file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from pipeline.run.bands import BANDS
from pipeline.run.symptoms import Health, examine
from pipeline.run.tail import Tail

Cell = tuple[str, int]
SECONDS = 5.0
"""Least time between two looks at one trial: a look takes time in proportion to its records."""


class LiveHealth:
    """Judges each trial by what it has recorded so far, by the same function as when it has ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._followed: dict[Cell, tuple[Tail, Mapping[str, object]]] = {}
        self._looked: dict[Cell, float] = {}

    def follow(self, arm: str, seed: int, path: Path, settings: Mapping[str, object]) -> None:
        """A trial with this flat configuration writes this file from now on."""
        self._followed[arm, seed] = Tail(path, frozenset(BANDS)), settings

    def leave(self, arm: str, seed: int) -> None:
        """A trial has ended; what was read of it is forgotten."""
        self._followed.pop((arm, seed), None)
        self._looked.pop((arm, seed), None)

    def poll(self, arm: str, seed: int) -> Health | None:
        """The health of a trial, or None where it has recorded nothing since the last look, or that was just now."""
        now, before = self._clock(), self._looked.get((arm, seed))
        if (arm, seed) not in self._followed or (before is not None and now - before < SECONDS):
            return None
        self._looked[arm, seed] = now
        tail, settings = self._followed[arm, seed]
        if not tail.read():
            return None
        series = {key: (np.array(list(rows)), np.array(list(rows.values()))) for key, rows in tail.series.items()}
        return examine(series, settings)
