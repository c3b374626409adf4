"""The bonus that keeps the policy undecided: the section `entropy`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, PartSettings, StrictlyPositive
from pipeline.config.effects import Chosen, When
from pipeline.schedule_settings import AdaptiveSettings, Control, Scheduled

BONUS = When(
    "an entropy bonus: entropy.coef above 0, or a schedule that goes above 0",
    lambda config: config.entropy.acts,
    "entropy.coef",
)


class EntropyTarget(AdaptiveSettings):
    """The entropy that the bonus is steered to."""

    target: StrictlyPositive = Field(1.0, description="nats per token")


class EntropyConfig(Scheduled, PartSettings):
    """The bonus on the policy's entropy in the loss, and how its weight moves."""

    coef: NonNegative = Field(
        0.0, description="weight of the entropy bonus in the loss; the starting value when control is not fixed"
    )
    control: Annotated[Control, BONUS] = Field(
        "fixed",
        description=(
            "how coef moves. adaptive: so that the entropy of the rollouts comes near adaptive.target; linear, cosine:"
            " from coef to end"
        ),
    )
    adaptive: Annotated[EntropyTarget, Chosen("control")] = EntropyTarget()

    @property
    def start(self) -> float:
        return self.coef

    @model_validator(mode="after")
    def _can_rise(self) -> Self:
        if self.control == "adaptive" and self.coef == 0:
            raise ValueError("coef 0 stays 0 with control: adaptive, which multiplies it; start above 0, such as 0.01")
        return self
