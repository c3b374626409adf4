"""Seconds and memory of one contender, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.resources.machine import peak_gib

PHASES = ("generate", "score", "train", "log", "selfcheck", "rest")


class Meter:
    """Time goes to the phase that is on top; entering another one stops the clock of the one below. The first update
    warms up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.updates: list[dict[str, float]] = []
        """Seconds of each update by phase."""
        self._phase, self._since, self._current = "rest", time.perf_counter(), dict.fromkeys(PHASES, 0.0)

    def switch(self, phase: str) -> None:
        """Count time for `phase` from here on; one that is no column of the table belongs to the rest."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._current[self._phase] += now - self._since
        self._phase, self._since = phase if phase in PHASES else "rest", now

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """`switch` for the length of a block."""
        below = self._phase
        self.switch(phase)
        try:
            yield
        finally:
            self.switch(below)

    def wrap(self, owner: Any, name: str, phase: str, after: str | None = None) -> None:
        """Count a function of `owner` as `phase`, and the time from its end as `after`, if that is given."""
        function = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            with self.timed(phase):
                made = function(*given, **named)
            if after:
                self.switch(after)
            return made

        setattr(owner, name, wrapped)

    def end_update(self) -> None:
        self.switch("rest")
        self.updates.append(self._current)
        self._current = dict.fromkeys(PHASES, 0.0)

    def result(self) -> dict[str, Any]:
        """Seconds of each update after the first, and the high-water mark of memory."""
        return {"updates": self.updates[1:], "peak_gib": peak_gib(self.device.type == "cuda")}
