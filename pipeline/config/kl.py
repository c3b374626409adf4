"""What holds the policy near its reference: the section `kl`."""

from __future__ import annotations

import itertools
from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Fraction, NonNegative, Section, StrictlyPositive

ERROR_CLIP = 0.2
"""Adaptive beta: the largest relative error of the KL that one rollout may report (Ziegler 2019)."""


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
    control: Literal["fixed", "adaptive", "linear", "cosine", "piecewise"] = Field(
        "fixed",
        description=(
            "how beta moves. adaptive: so that the KL comes near target; linear, cosine: from beta to beta_end;"
            " piecewise: as beta_stages says"
        ),
    )
    beta_end: NonNegative = Field(0.0, description="linear and cosine: beta of the last update")
    beta_stages: tuple[tuple[Fraction, NonNegative], ...] = Field(
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
    def begins_at_a_stage(self) -> bool:
        """Whether ``beta`` itself is never in force."""
        return self.control == "piecewise" and any(start == 0 for start, _ in self.beta_stages)

    @property
    def betas(self) -> list[float]:
        """Values of beta at the start, at the end and at the stages of its schedule."""
        first = [] if self.begins_at_a_stage else [self.beta]
        match self.control:
            case "linear" | "cosine":
                return [*first, self.beta_end]
            case "piecewise":
                return [*first, *(beta for _, beta in self.beta_stages)]
            case _:
                return first

    def check_horizon(self, batch_size: int) -> None:
        """Raise `ValueError` where one rollout of so many episodes could take an adaptive beta to 0 or below."""
        least = ERROR_CLIP * batch_size
        if self.control == "adaptive" and self.horizon <= least:
            raise ValueError(
                f"kl.horizon {self.horizon:g} lets one rollout take beta to 0 or below; above 0.2 x train.batch_size ="
                f" {least:g}"
            )

    @model_validator(mode="after")
    def _stages(self) -> Self:
        starts = [start for start, _ in self.beta_stages]
        if bool(starts) != (self.control == "piecewise"):
            raise ValueError(
                "beta_stages and control: piecewise need each other; for example beta_stages: [[0.25, 0.1], [0.5,"
                " 0.05]]"
            )
        if any(late <= early for early, late in itertools.pairwise(starts)):
            raise ValueError(f"beta_stages: the fractions {starts} must rise")
        return self
