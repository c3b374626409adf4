"""The policy's loss and its optimiser: the sections `algorithm` and `optimiser`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.algorithms.kinds import ADVANTAGES, TRUST_REGIONS
from pipeline.algorithms.settings import ADAM_MOVES_THE_POLICY
from pipeline.config.base import Fraction, NonNegative, Section, StrictlyPositive, refuse, with_settings
from pipeline.config.effects import Always, Chosen, When, setting, value_at
from pipeline.config.networks import FITTED_CRITIC, SEPARATE, TRAINED
from pipeline.config.presets import PRESETS

COMMON_RATE = When(
    "algorithm.trust_region other than trpo, or a critic without critic.lr or critic.head_lr",
    lambda config: config.algorithm.trust_region != "trpo" or None in (config.critic.lr, config.critic.head_lr),
    "algorithm.trust_region",
)
GUARD = setting("optimiser.guard", True)
LARGEST_MEAN_CLIP = 0.02
"""Largest clip range on a response's mean ratio; a larger one was meant for tokens."""


@with_settings(TRUST_REGIONS, Chosen("trust_region"))
@with_settings(ADVANTAGES, Chosen("advantage"))
class AlgorithmConfig(Section):
    """Definition of the policy's loss. An arm may write ``algorithm: grpo`` for ``algorithm.name: grpo``."""

    name: Annotated[Literal[tuple(PRESETS)], Always()] = Field(  # type: ignore[valid-type]
        "ppo", description="; ".join(f"{name}: {preset.summary}" for name, preset in PRESETS.items())
    )
    advantage: Annotated[Literal[tuple(ADVANTAGES)], Always()] = Field(  # type: ignore[valid-type]
        "gae", description="; ".join(f"{name}: {need.words}" for name, need in ADVANTAGES.items())
    )
    ratio: Literal["token", "sequence_mean", "sequence_sum", "none"] = Field(
        "token",
        description=(
            "whose probability is compared with that of the rollout: each token's, the response's per token (geometric"
            " mean), or the response's; none: no ratio, the gradient of the log-probability"
        ),
    )
    trust_region: Literal[tuple(TRUST_REGIONS)] = Field(  # type: ignore[valid-type]
        "clip", description="; ".join(f"{name}: {region.words}" for name, region in TRUST_REGIONS.items())
    )
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"] = Field(
        "token_mean",
        description=(
            "weight of a token in the loss of N tokens in B responses, of which its own has n: 1 / N; 1 / (B n); 1 / B;"
            " 1 / (B x train.response_length)"
        ),
    )
    tokens: Literal["all", "forks", "high_entropy", "low_entropy", "random"] = Field(
        "all",
        description=(
            "tokens that are learned from; all others have advantage 0. forks: where a working of chains can go on in"
            " several sound ways; high_entropy, low_entropy, random: token_share of the tokens"
        ),
    )
    token_share: Annotated[Fraction, setting("algorithm.tokens", "high_entropy", "low_entropy", "random")] = Field(
        0.2, description="share of the tokens of a rollout"
    )
    signs: Literal["both", "positive", "negative"] = Field(
        "both", description="advantages that are learned from; those of the other sign become 0"
    )
    gamma: Annotated[Fraction, setting("algorithm.advantage", "gae", "reinforce_pp")] = Field(
        1.0, description="discount factor per token"
    )
    gae_lambda: Annotated[Fraction, setting("algorithm.advantage", "gae", "replay")] = Field(
        0.95, description="lambda of the advantages"
    )
    value_lambda: Annotated[Fraction | None, *FITTED_CRITIC] = Field(
        None, description="lambda of the returns that the critic is fitted to; none: gae_lambda"
    )
    whiten_advantages: bool = Field(
        True,
        description=(
            "scale the advantages of a rollout to mean 0 and variance 1: over its tokens, or over its responses where"
            " the ratio is of a response"
        ),
    )
    target_kl: Annotated[StrictlyPositive | None, ADAM_MOVES_THE_POLICY] = Field(
        None,
        description="end an update before a step at which approxkl exceeds 1.5 times this, in nats per token",
    )

    @property
    def by_sequence(self) -> bool:
        """Return whether the loss is one of whole responses: then all tokens of a response have its advantage."""
        return self.ratio in ("sequence_mean", "sequence_sum")

    @property
    def by_pairs(self) -> bool:
        return TRUST_REGIONS[self.trust_region].pairwise

    @property
    def needs_values(self) -> bool:
        return ADVANTAGES[self.advantage].values

    @property
    def learns(self) -> bool:
        return ADVANTAGES[self.advantage].code is not None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        ratio, region = f"ratio '{self.ratio}'", f"trust_region '{self.trust_region}'"
        epsilon = max(value_at(self, "clip.epsilons"))
        refuse({
            f"{ratio} leaves {region} nothing to bound; use trust_region: none": (
                self.ratio == "none" and self.trust_region != "none"
            ),
            f"{region} compares whole responses, and ratio is '{self.ratio}'; use sequence_sum, or sequence_mean for"
            " margins per token": self.by_pairs and not self.by_sequence,
            f"{region} bounds the KL per token, and {ratio} is that of a whole response; use ratio: token": (
                self.by_sequence and self.trust_region in ("kl_penalty", "trpo")
            ),
            f"{ratio} needs one advantage for a whole response, and advantage '{self.advantage}' gives every token its"
            " own; use ratio: token or none": self.by_sequence and ADVANTAGES[self.advantage].varies,
            f"clip.epsilon {epsilon:g} never clips a ratio that is averaged over a response: it leaves 1 by about"
            " 0.001; use 3e-4 and epsilon_high 4e-4, as GSPO does": (
                (self.ratio, self.trust_region) == ("sequence_mean", "clip") and epsilon > LARGEST_MEAN_CLIP
            ),
        })  # fmt: skip
        return self


class OptimiserConfig(Section):
    """Adam, its learning rate and what holds it back."""

    lr: Annotated[NonNegative, COMMON_RATE] = Field(1e-4, description="learning rate of the policy network")
    lr_schedule: Literal["linear", "constant"] = Field("linear", description="linear: falls to 0 at the last step")
    adam_eps: StrictlyPositive = Field(1e-5, description="Adam's epsilon, which is added to the denominator")
    max_grad_norm: StrictlyPositive = Field(
        1.0, description="gradients with a larger global norm are scaled down to it"
    )
    clip_norms: Annotated[Literal["apart", "together"], SEPARATE, TRAINED, ADAM_MOVES_THE_POLICY] = Field(
        "apart",
        description=(
            "gradient clipping with a separate critic; apart: policy and critic each have max_grad_norm; together: they"
            " share it"
        ),
    )
    guard: Annotated[bool, ADAM_MOVES_THE_POLICY] = Field(
        False,
        description=(
            "halve the learning rate of the policy, and of a critic on its trunk, for 100 gradient steps after a"
            " rollout whose KL per token exceeds guard_kl"
        ),
    )
    guard_kl: Annotated[StrictlyPositive, GUARD, ADAM_MOVES_THE_POLICY] = Field(
        0.015, description="KL to the reference above which the guard acts, in nats per token"
    )
