"""What holds the policy near its reference: the section `kl`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, Section, StrictlyPositive
from pipeline.config.schedule import Control, Schedule, Stages


class KlConfig(Section):
    """The penalty on the KL to the reference, and how its weight beta moves."""

    beta: NonNegative = Field(0.05, description="weight of the penalty; the starting value when control is not fixed")
    place: Literal["reward", "score", "loss", "margin"] = Field(
        "reward",
        description=(
            "where the penalty acts: on every token's reward; on the response's score, before a baseline is subtracted;"
            " or in the loss. Whitening divides a beta in reward or score by the standard deviation of the advantages."
            " margin: no penalty; beta scales the margin in a loss of pairs"
        ),
    )
    reward_estimator: Literal["k1", "k3"] = Field(
        "k1", description="estimator of the penalty in reward or score; the gradient of k3 there is biased"
    )
    loss_estimator: Literal["k2", "k3", "ratio_k3", "sequence_k2"] = Field(
        "k2",
        description=(
            "estimator of the penalty in the loss; ratio_k3: k3 times the ratio, whose gradient stays that of the KL"
            " when the policy has moved since the rollout; sequence_k2: k2 of the whole response, so that a token also"
            " pays for the drift that it leads to; k1 is not offered, since its mean gradient is 0"
        ),
    )
    control: Control = Field(
        "fixed",
        description=(
            "how beta moves. adaptive: so that the KL comes near target; linear, cosine: from beta to beta_end;"
            " piecewise: as beta_stages says"
        ),
    )
    beta_end: NonNegative = Field(0.0, description="linear and cosine: beta of the last update")
    beta_stages: Stages = Field(
        (), description="piecewise: pairs [fraction, beta]; beta has this value from that fraction of the trial on"
    )
    target: StrictlyPositive = Field(6.0, description="adaptive beta: target in nats per sequence")
    horizon: StrictlyPositive = Field(10_000, description="adaptive beta: horizon in episodes")
    hinge: StrictlyPositive | None = Field(
        None,
        description=(
            "nats per token: while a mini-batch's KL to the reference is above it, its step shrinks to hinge / KL"
        ),
    )

    @property
    def by_sequence(self) -> bool:
        """Whether the loss has a penalty on whole responses."""
        return self.place == "loss" and self.loss_estimator == "sequence_k2"

    @property
    def schedule(self) -> Schedule:
        """How beta moves."""
        return Schedule(self.control, self.beta, self.beta_end, self.beta_stages)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self.schedule.check_stages("beta_stages")
        return self
