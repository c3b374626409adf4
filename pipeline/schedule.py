"""A coefficient that moves over a trial: the values it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Control = Literal["fixed", "adaptive", "linear", "cosine", "piecewise"]
ERROR_CLIP = 0.2
"""Adaptive: the largest relative error that one rollout may report (Ziegler 2019)."""


@dataclass(frozen=True)
class Schedule:
    """The values of a coefficient over a trial, whatever it weighs."""

    control: Control
    start: float
    end: float
    """Of linear and cosine, in the last update."""
    stages: tuple[tuple[float, float], ...]
    """Of piecewise."""

    @property
    def begins_at_a_stage(self) -> bool:
        """Return whether ``start`` itself is never in force."""
        return self.control == "piecewise" and any(fraction == 0 for fraction, _ in self.stages)

    @property
    def values(self) -> list[float]:
        """At the start, at the end and at the stages."""
        first = [] if self.begins_at_a_stage else [self.start]
        match self.control:
            case "linear" | "cosine":
                return [*first, self.end]
            case "piecewise":
                return [*first, *(value for _, value in self.stages)]
            case _:
                return first
