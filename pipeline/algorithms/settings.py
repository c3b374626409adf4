"""Settings of single trust regions and advantages: the sections `algorithm.clip`, `algorithm.trpo` and the like."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import NonNegative, Positive, Section, StrictlyPositive
from pipeline.config.effects import When

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


class CispoSettings(Section):
    """The capped ratio as a constant weight of the gradient (MiniMax 2025)."""

    cap: StrictlyPositive = Field(5.0, description="the largest weight that a ratio can have")


class KlPenaltySettings(Section):
    """An adaptive penalty on the KL from the rollout's policy (Schulman 2017, section 4)."""

    coef: StrictlyPositive = Field(1.0, description="weight of the KL from the rollout's policy in the first update")
    target: StrictlyPositive = Field(
        0.01,
        description=(
            "nats per token; the weight doubles after an update whose KL is above 1.5 times this, and halves after one"
            " whose KL is below this / 1.5"
        ),
    )


class TrpoSettings(Section):
    """One natural-gradient step per rollout (Schulman 2015)."""

    delta: StrictlyPositive = Field(
        0.01, description="nats per token; the largest mean KL from the rollout's policy after a step"
    )
    damping: NonNegative = Field(0.1, description="multiple of the identity that is added to the Fisher matrix")
    cg_iterations: Positive = Field(
        10, description="conjugate-gradient iterations, one Fisher-vector product over the rollout each"
    )
    line_search: Positive = Field(10, description="largest number of step lengths to try; each is 0.8 times the last")


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
    samples: Positive | None = Field(
        None, description="samples of each prompt that are used, at most values.samples; none: all of them"
    )
