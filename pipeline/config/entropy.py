"""What keeps the policy undecided: the section `entropy`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, Section, StrictlyPositive
from pipeline.config.schedule import Control, Schedule, Stages


class EntropyConfig(Section):
    """The bonus on the policy's entropy in the loss, and how its weight moves."""

    coef: NonNegative = Field(
        0.0, description="weight of the entropy bonus in the loss; the starting value when control is not fixed"
    )
    control: Control = Field(
        "fixed",
        description=(
            "how coef moves. adaptive: so that the entropy of the rollouts comes near target; linear, cosine: from coef"
            " to coef_end; piecewise: as coef_stages says"
        ),
    )
    coef_end: NonNegative = Field(0.0, description="linear and cosine: coef of the last update")
    coef_stages: Stages = Field(
        (), description="piecewise: pairs [fraction, coef]; coef has this value from that fraction of the trial on"
    )
    target: StrictlyPositive = Field(1.0, description="adaptive coef: target in nats per token")
    horizon: StrictlyPositive = Field(10_000, description="adaptive coef: horizon in episodes")

    @property
    def schedule(self) -> Schedule:
        """How coef moves."""
        return Schedule(self.control, self.coef, self.coef_end, self.coef_stages)

    @property
    def acts(self) -> bool:
        """Whether there is a bonus in some part of the trial."""
        return any(self.schedule.values)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self.schedule.check_stages("coef_stages")
        if self.control == "adaptive" and self.coef == 0:
            raise ValueError("coef 0 stays 0 with control: adaptive, which multiplies it; start above 0, such as 0.01")
        return self
