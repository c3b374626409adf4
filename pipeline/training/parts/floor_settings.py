"""A part of the reward that must not fall below a floor: the section `floor`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.config.base import Finite, NonNegative, PartSettings, StrictlyPositive
from pipeline.config.effects import Config, given
from pipeline.config.names import nearest

PART = given("floor.part")


class FloorConfig(PartSettings):
    """A weight that rises while a part of a composite reward is below its floor, and falls while it is above."""

    part: str | None = Field(None, description="name of the part of the reward that has a floor; none: no floor")
    at: Annotated[Finite, PART] = Field(
        0.0, description="the floor of the part's mean over a rollout, in std of reference samples; 0: the reference's"
    )
    lr: Annotated[StrictlyPositive, PART] = Field(
        0.05, description="how much the weight moves after a rollout for each std that the part is off its floor"
    )
    weight: Annotated[NonNegative, PART] = Field(0.0, description="the weight at the start")
    max_weight: Annotated[StrictlyPositive, PART] = Field(10.0, description="the weight never goes above this")

    @property
    def acts(self) -> bool:
        return self.part is not None

    def check(self, config: Config) -> None:
        """Refuse a floor of a part that is not there, and one where scores are not those of a rollout."""
        part, parts = self.part, config.reward.parts
        if part is None:
            return
        if part not in parts:
            there = ", ".join(parts) or "none, since reward.kind is not composite"
            raise ValueError(
                f"floor.part '{part}': reward.parts has none of that name{nearest(part, parts)}; there are: {there}"
            )
        if len(parts) == 1:
            raise ValueError(
                f"floor.part '{part}' is the only part of the reward, so its weight changes nothing; add another part,"
                " or leave floor.part out"
            )
        if self.weight > self.max_weight:
            raise ValueError(f"floor.weight {self.weight:g} is above floor.max_weight {self.max_weight:g}; lower it")
        if config.needs_samples:
            raise ValueError(
                "floor.part: the weight of the part moves in training, and algorithm.advantage v_star and"
                " critic.pretraining_steps use scores that were made before it; leave one of them out"
            )
        if config.train.data == "pairs":
            raise ValueError("floor.part acts on the scores of rollouts, and train.data is 'pairs'; use rollouts")
