"""A part of the reward that must not fall below a floor: the section `floor`."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import Finite, NonNegative, Section, StrictlyPositive


class FloorConfig(Section):
    """A weight that rises while a part of a composite reward is below its floor, and falls while it is above."""

    part: str | None = Field(None, description="name of the part of the reward that has a floor; none: no floor")
    at: Finite = Field(
        0.0, description="the floor of the part's mean over a rollout, in std of reference samples; 0: the reference's"
    )
    lr: StrictlyPositive = Field(
        0.05, description="how much the weight moves after a rollout for each std that the part is off its floor"
    )
    weight: NonNegative = Field(0.0, description="the weight at the start")
    max_weight: StrictlyPositive = Field(10.0, description="the weight never goes above this")
