"""Settings of single trust regions and advantages (`algorithm.clip` and the like), of the penalty that holds the policy
near its reference (`kl`), and of the schedule of a coefficient."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import NonNegative, Section, StrictlyPositive
from pipeline.config.effects import Beside, Chosen, When, setting

LEARNS = When(
    "an algorithm that takes gradient steps (algorithm.advantage other than none)",
    lambda config: config.algorithm.learns,
    "algorithm.advantage",
)
ADAM_MOVES_THE_POLICY = When(
    "algorithm.trust_region other than trpo",
    lambda config: config.algorithm.trust_region != "trpo",
    "algorithm.trust_region",
)
PENALTY = When(
    "a KL penalty: kl.beta above 0, or a schedule that goes above 0", lambda config: config.kl.acts, "kl.beta"
)
GROUPED = setting("kl.place", "reward", "loss")
Control = Literal["fixed", "adaptive", "linear", "cosine"]


class ClipSettings(Section):
    """No gain from a ratio beyond the clip range (Schulman 2017)."""

    epsilon: StrictlyPositive = Field(0.2, description="the ratio is clipped to 1 - epsilon and 1 + epsilon")
    epsilon_high: StrictlyPositive | None = Field(
        None, description="epsilon above 1, where it is not the one below; none: epsilon"
    )

    @property
    def epsilons(self) -> tuple[float, float]:
        """The clip range below and above 1."""
        return self.epsilon, self.epsilon if self.epsilon_high is None else self.epsilon_high


class KlPenaltySettings(Section):
    """An adaptive penalty on the KL from the rollout's policy (Schulman 2017, section 4)."""

    target: StrictlyPositive = Field(
        0.01,
        description=(
            "nats per token; the weight doubles after an update whose KL is above 1.5 times this, and halves after one"
            " whose KL is below this / 1.5"
        ),
    )


CG_ITERATIONS = 10
"""Conjugate-gradient iterations of TRPO, one Fisher-vector product over the rollout each; Schulman 2015, appendix C."""


class TrpoSettings(Section):
    """One natural-gradient step per rollout (Schulman 2015)."""

    delta: StrictlyPositive = Field(
        0.01, description="nats per token; the largest mean KL from the rollout's policy after a step"
    )


class VStarSettings(Section):
    """V* of a prompt, by samples of the reference (A*-PO, Brantley 2025)."""

    # 0.5, as published, is biased too much for the few samples that are affordable: for normal scores 8 of them give
    # 0.70 of V* = 1.00; at 1.0 it is 0.41 of 0.50, and 16 samples give 0.45.
    beta: StrictlyPositive = Field(
        1.0,
        description=(
            "beta_1, the temperature of the soft maximum; a small one approaches the best score of a prompt, a large"
            " one the mean score"
        ),
    )


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
        """The coefficient in the first update."""
        raise NotImplementedError

    @property
    def anneals(self) -> bool:
        """Return whether the coefficient goes to `end`."""
        return self.control in ("linear", "cosine")

    @property
    def extremes(self) -> list[float]:
        """The coefficient at the start and at the end."""
        return [self.start, self.end] if self.anneals else [self.start]

    @property
    def acts(self) -> bool:
        """Return whether the coefficient is above 0 in some part of the trial."""
        return any(self.extremes)


class KlTarget(AdaptiveSettings):
    """The KL that beta is steered to."""

    target: StrictlyPositive = Field(6.0, description="nats per sequence")


class KlConfig(Scheduled):
    """The penalty on the KL to the reference, and how its weight beta moves."""

    beta: NonNegative = Field(0.05, description="weight of the penalty; the starting value when control is not fixed")
    place: Annotated[Literal["reward", "score", "loss", "margin"], PENALTY] = Field(
        "reward",
        description=(
            "where the penalty acts: on every token's reward; on the response's score, before a baseline is subtracted;"
            " or in the loss. Whitening divides a beta in reward or score by the standard deviation of the advantages."
            " margin: no penalty; beta scales the margin in a loss of pairs"
        ),
    )
    loss_estimator: Annotated[Literal["k2", "k3"], setting("kl.place", "loss"), PENALTY] = Field(
        "k2", description="estimator of the penalty in the loss; k1 is not offered, since its mean gradient is 0"
    )
    group: Annotated[Literal["token", "clause", "sentence", "sequence"], GROUPED, PENALTY] = Field(
        "token",
        description=(
            "tokens whose log-ratios are summed before the estimator is taken. A clause ends in , ; : . ! ? or a new"
            " line, a sentence in . ! ? or a new line, by the text of single tokens; the end of a response ends both;"
            " sequence: the whole response"
        ),
    )
    group_credit: Annotated[
        Literal["shared", "last"], setting("kl.group", "clause", "sentence", "sequence"), GROUPED, PENALTY
    ] = Field(
        "shared",
        description=(
            "where the penalty of a group acts. In the reward, shared: evenly on its tokens; last: on its last token."
            " In the loss, shared: its gradient goes through all its tokens; last: through its last token alone"
        ),
    )
    control: Annotated[Control, PENALTY] = Field(
        "fixed",
        description="how beta moves. adaptive: to bring the KL near adaptive.target; linear, cosine: from beta to end",
    )
    adaptive: Annotated[KlTarget, Chosen("control"), PENALTY] = KlTarget()
    hinge: Annotated[StrictlyPositive | None, ADAM_MOVES_THE_POLICY] = Field(
        None,
        description=(
            "nats per token: while a mini-batch's KL to the reference is above it, the step of the policy, and of a"
            " critic on its trunk, shrinks to hinge / KL"
        ),
    )

    def grouped_in(self, place: Literal["reward", "loss"]) -> bool:
        """Return whether the penalty is at `place`, and on groups of tokens."""
        return self.place == place and self.group != "token"

    @property
    def by_sequence(self) -> bool:
        """Return whether the loss is the square of a whole response's log-ratio, which is minimised on any samples."""
        whole = self.grouped_in("loss") and self.group == "sequence" and self.group_credit == "shared"
        return whole and self.loss_estimator == "k2"

    @property
    def squares_throughout(self) -> bool:
        """Return whether that square has a weight above 0 from the first update to the last."""
        return self.by_sequence and all(self.extremes)

    @property
    def start(self) -> float:
        return self.beta
