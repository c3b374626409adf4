"""How a coefficient moves in a trial: what the sections `kl` and `entropy` have in common."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from pipeline.config.base import Fraction, NonNegative

Control = Literal["fixed", "adaptive", "linear", "cosine", "piecewise"]
Stages = tuple[tuple[Fraction, NonNegative], ...]
"""Pairs [fraction, value]: the coefficient has this value from that fraction of the trial on."""

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
        """Whether ``start`` itself is never in force."""
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

    def check_stages(self, key: str) -> None:
        """Raise `ValueError` for stages without ``piecewise``, the reverse, or fractions that do not rise; `key` is
        what the configuration calls the stages."""
        fractions = [fraction for fraction, _ in self.stages]
        if bool(fractions) != (self.control == "piecewise"):
            raise ValueError(
                f"{key} and control: piecewise need each other; for example {key}: [[0.25, 0.1], [0.5, 0.05]]"
            )
        if any(late <= early for early, late in itertools.pairwise(fractions)):
            raise ValueError(f"{key}: the fractions {fractions} must rise")

    def check_horizon(self, key: str, name: str, horizon: float, batch_size: int) -> None:
        """Raise `ValueError` where one rollout of so many episodes could take an adaptive coefficient to 0 or below;
        `key` is the horizon's, in episodes, and `name` the coefficient's."""
        least = ERROR_CLIP * batch_size
        if self.control == "adaptive" and horizon <= least:
            raise ValueError(
                f"{key} {horizon:g} lets one rollout take {name} to 0 or below; above 0.2 x train.batch_size ="
                f" {least:g}"
            )
