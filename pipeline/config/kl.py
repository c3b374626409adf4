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
    loss_estimator: Literal["k2", "k3", "ratio_k3"] = Field(
        "k2",
        description=(
            "estimator of the penalty in the loss; ratio_k3: k3 times the ratio, whose gradient stays that of the KL"
            " when the policy has moved since the rollout; k1 is not offered, since its mean gradient is 0"
        ),
    )
    group: Literal["token", "clause", "sentence", "sequence"] = Field(
        "token",
        description=(
            "tokens whose log-ratios are summed before the estimator is taken. A clause ends in , ; : . ! ? or a new"
            " line, a sentence in . ! ? or a new line, by the text of single tokens; the end of a response ends both;"
            " sequence: the whole response"
        ),
    )
    group_credit: Literal["shared", "last"] = Field(
        "shared",
        description=(
            "where the penalty of a group acts. In the reward, shared: evenly on its tokens; last: on its last token."
            " In the loss, shared: its gradient goes through all its tokens; last: through its last token alone"
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
            "nats per token: while a mini-batch's KL to the reference is above it, the step of the policy, and of a"
            " critic on its trunk, shrinks to hinge / KL"
        ),
    )

    def grouped_in(self, place: Literal["reward", "loss"]) -> bool:
        """Whether the penalty stands there, and is one on groups of tokens."""
        return self.place == place and self.group != "token"

    @property
    def by_sequence(self) -> bool:
        """Whether the loss is the square of a whole response's log-ratio, which is minimised on any samples."""
        whole = self.grouped_in("loss") and self.group == "sequence" and self.group_credit == "shared"
        return whole and self.loss_estimator == "k2"

    @property
    def squares_throughout(self) -> bool:
        """Whether that square has a weight above 0 from the first update to the last."""
        return self.by_sequence and all(self.schedule.values)

    @property
    def schedule(self) -> Schedule:
        """How beta moves."""
        return Schedule(self.control, self.beta, self.beta_end, self.beta_stages)

    @model_validator(mode="after")
    def _ratio_of_a_token(self) -> Self:
        if self.grouped_in("loss") and self.loss_estimator == "ratio_k3":
            raise ValueError(
                f"loss_estimator 'ratio_k3' weighs k3 by the ratio of a token, and group is '{self.group}'; use k2 or"
                " k3, or group: token"
            )
        return self

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self.schedule.check_stages("beta_stages")
        return self
