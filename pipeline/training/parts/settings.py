"""Settings of parts of training: the sections `entropy`, `floor` and `rollout`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.algorithms.settings import AdaptiveSettings, Control, Scheduled
from pipeline.config.base import Finite, NonNegative, PartSettings, Positive, StrictlyPositive
from pipeline.config.effects import Chosen, Config, When, given
from pipeline.config.names import nearest

BONUS = When(
    "an entropy bonus: entropy.coef above 0, or a schedule that goes above 0",
    lambda config: config.entropy.acts,
    "entropy.coef",
)
PART = given("floor.part")
APART = When(
    "episodes of another policy than the one in training: rollout.every above 1, or a rollout.dtype",
    lambda config: config.rollout.acts,
    "rollout.every",
)
CORRECTED = When(
    "rollout.correction: truncated or masked", lambda config: config.rollout.correction != "none", "rollout.correction"
)
MAX_WEIGHT = 10.0
"""The weight never goes above this: a part that weighs ten times the rest already decides the reward."""


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


class FloorConfig(PartSettings):
    """A weight that rises while a part of a composite reward is below its floor, and falls while it is above."""

    part: str | None = Field(None, description="name of the part of the reward that has a floor; none: no floor")
    at: Annotated[Finite, PART] = Field(
        0.0, description="the floor of the part's mean over a rollout, in std of reference samples; 0: the reference's"
    )
    weight: Annotated[NonNegative, Field(le=MAX_WEIGHT), PART] = Field(0.0, description="the weight at the start")

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
        if config.needs_samples:
            raise ValueError(
                "floor.part: the weight of the part moves in training, and algorithm.advantage v_star and"
                " critic.pretraining_steps use scores that were made before it; leave one of them out"
            )
        if config.train.data == "pairs":
            raise ValueError("floor.part acts on the scores of rollouts, and train.data is 'pairs'; use rollouts")


class RolloutConfig(PartSettings):
    """Episodes of a policy that is older than the one in training, or of lower precision, and their weights."""

    every: Positive = Field(
        1,
        description="updates after which the copy that samples is renewed; 1: the policy itself samples",
    )
    dtype: Literal["training", "bfloat16", "float16"] = Field(
        "training", description="precision of sampling; training: the same precision as in training"
    )
    correction: Annotated[Literal["none", "truncated", "masked"], APART] = Field(
        "none",
        description=(
            "factor on advantages. truncated: the ratio of the policy in training to the one that sampled, at most"
            " `most`; masked: that ratio, 0 above `most`"
        ),
    )
    level: Annotated[Literal["token", "sequence"], APART, CORRECTED] = Field(
        "token",
        description="token: a ratio for each token; sequence: one for each response, the product over its tokens",
    )
    most: Annotated[float, Field(ge=1.0, allow_inf_nan=False), APART, CORRECTED] = Field(
        2.0, description="a larger ratio is replaced: by this value (truncated) or by 0 (masked)"
    )

    @property
    def acts(self) -> bool:
        return self.every > 1 or self.dtype != "training"

    def check(self, config: Config) -> None:
        """Refuse a copy that is not sampled from, and ratios of tokens where a response has one advantage."""
        if not self.acts:
            return
        if config.train.data == "pairs":
            raise ValueError("rollout.every and rollout.dtype act on rollouts, and train.data is 'pairs'; use rollouts")
        if config.adapter.quantize != "none" and self.dtype != "training":
            raise ValueError(
                f"rollout.dtype {self.dtype}: the policy's weights are quantized (adapter.quantize:"
                f" {config.adapter.quantize}); use dtype: training"
            )
        if self.correction != "none" and self.level == "token" and config.algorithm.by_sequence:
            raise ValueError(
                f"rollout.level token: algorithm {config.algorithm.name} has one advantage for a response; use sequence"
            )
