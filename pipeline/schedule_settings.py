"""Schedule of a coefficient in a trial: what the sections `kl` and `entropy` have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import NonNegative, Section, StrictlyPositive
from pipeline.config.effects import Beside

Control = Literal["fixed", "adaptive", "linear", "cosine"]


class AdaptiveSettings(Section):
    """A coefficient that moves so that a quantity comes near its target (Ziegler 2019)."""

    target: StrictlyPositive
    horizon: StrictlyPositive = Field(10_000, description="horizon of the controller in episodes")


class Scheduled(Section):
    """A section whose coefficient moves."""

    control: Control = "fixed"
    """adaptive: towards a target; linear, cosine: to `end`."""
    end: Annotated[NonNegative, Beside("control: linear or cosine", lambda section: section.anneals, "control")] = (
        Field(0.0, description="linear and cosine: the coefficient in the last update")
    )

    @property
    def start(self) -> float:
        raise NotImplementedError

    @property
    def anneals(self) -> bool:
        return self.control in ("linear", "cosine")

    @property
    def extremes(self) -> list[float]:
        return [self.start, self.end] if self.anneals else [self.start]

    @property
    def acts(self) -> bool:
        """Return whether the coefficient is above 0 in some part of the trial."""
        return any(self.extremes)
