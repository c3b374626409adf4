"""Schedule of a coefficient in a trial: what the sections `kl` and `entropy` have in common."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, Section, Stages, StrictlyPositive
from pipeline.config.effects import Beside

Control = Literal["fixed", "adaptive", "linear", "cosine", "piecewise"]

BEGINS = Beside(
    "control other than piecewise, or a first stage that begins after 0",
    lambda section: not section.begins_at_a_stage,
    "stages",
)
"""Condition that the value at the start is ever in force."""


class AdaptiveSettings(Section):
    """A coefficient that moves so that a quantity comes near its target (Ziegler 2019)."""

    target: StrictlyPositive
    horizon: StrictlyPositive = Field(10_000, description="horizon of the controller in episodes")


class Scheduled(Section):
    """A section whose coefficient moves."""

    control: Control = Field(
        "fixed",
        description=(
            "how the coefficient moves. adaptive: towards a target; linear, cosine: to `end`; piecewise: as `stages`"
            " says"
        ),
    )
    end: Annotated[NonNegative, Beside("control: linear or cosine", lambda section: section.anneals, "control")] = (
        Field(0.0, description="linear and cosine: the coefficient in the last update")
    )
    stages: Stages = Field(
        (), description="piecewise: pairs [fraction, value]; the value holds from that fraction of the trial on"
    )

    @property
    def start(self) -> float:
        """The coefficient in the first update."""
        raise NotImplementedError

    @property
    def anneals(self) -> bool:
        """Return whether the coefficient goes to `end`."""
        return self.control in ("linear", "cosine")

    @property
    def begins_at_a_stage(self) -> bool:
        """Return whether `start` itself is never in force."""
        return self.control == "piecewise" and any(fraction == 0 for fraction, _ in self.stages)

    @property
    def extremes(self) -> list[float]:
        """The coefficient at the start, at the end and at the stages."""
        later = [self.end] if self.anneals else [value for _, value in self.stages]
        return later if self.begins_at_a_stage else [self.start, *later]

    @property
    def acts(self) -> bool:
        """Return whether the coefficient is above 0 in some part of the trial."""
        return any(self.extremes)

    @model_validator(mode="after")
    def _stages_rise(self) -> Self:
        fractions = [fraction for fraction, _ in self.stages]
        if bool(fractions) != (self.control == "piecewise"):
            raise ValueError(
                "stages and control: piecewise need each other; for example stages: [[0.25, 0.1], [0.5, 0.05]]"
            )
        if any(late <= early for early, late in itertools.pairwise(fractions)):
            raise ValueError(f"stages: the fractions {fractions} must rise")
        return self
