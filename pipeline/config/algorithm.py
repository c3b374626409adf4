"""What the policy's loss is made of, and what takes its steps: the sections `algorithm` and `optimiser`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Finite, Fraction, NonNegative, Positive, Section, StrictlyPositive
from pipeline.config.presets import ADVANTAGES, PAIRWISE, PRESETS

LARGEST_MEAN_CLIP = 0.02
"""Above it, a clip range on a response's mean ratio is one that was meant for tokens."""


class AlgorithmConfig(Section):
    """What the policy's loss is made of. An arm may write ``algorithm: grpo`` for ``algorithm.name: grpo``."""

    name: Literal[tuple(PRESETS)] = Field(  # type: ignore[valid-type]
        "ppo", description="; ".join(f"{name}: {preset.summary}" for name, preset in PRESETS.items())
    )
    advantage: Literal[tuple(ADVANTAGES)] = Field(  # type: ignore[valid-type]
        "gae", description="; ".join(f"{name}: {need.summary}" for name, need in ADVANTAGES.items())
    )
    ratio: Literal["token", "sequence_mean", "sequence_sum", "none"] = Field(
        "token",
        description=(
            "whose probability is compared with that of the rollout: each token's, the response's per token (geometric"
            " mean), or the response's; none: no ratio, the gradient of the log-probability"
        ),
    )
    trust_region: Literal["clip", "cispo", "none", "kl_penalty", "trpo", "dpo", "ipo"] = Field(
        "clip",
        description=(
            "clip: no gain from a ratio beyond the clip range; cispo: the ratio, capped at ratio_cap, is a constant"
            " weight; none: no bound; kl_penalty: adaptive penalty on the KL from the rollout's policy; trpo: one"
            " natural-gradient step per rollout, with a bound on the exact KL; dpo, ipo: no bound, a loss of the margin"
            " between the two responses to a prompt"
        ),
    )
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"] = Field(
        "token_mean",
        description=(
            "weight of a token in the loss of N tokens in B responses, of which its own has n: 1 / N; 1 / (B n); 1 / B;"
            " 1 / (B x train.response_length)"
        ),
    )
    cliprange: StrictlyPositive = Field(0.2, description="epsilon")
    cliprange_high: StrictlyPositive | None = Field(
        None, description="epsilon above 1, where it is not the one below; none: cliprange"
    )
    ratio_cap: StrictlyPositive = Field(5.0, description="cispo: the largest weight that a ratio can have")
    old_kl_coef: StrictlyPositive = Field(
        1.0, description="kl_penalty: weight of the KL from the rollout's policy in the first update"
    )
    old_kl_target: StrictlyPositive = Field(
        0.01,
        description=(
            "kl_penalty: nats per token; the weight doubles after an update whose KL is above 1.5 times this, and"
            " halves after one whose KL is below this / 1.5"
        ),
    )
    trpo_delta: StrictlyPositive = Field(
        0.01, description="trpo: nats per token; the largest mean KL from the rollout's policy after a step"
    )
    trpo_damping: NonNegative = Field(
        0.1, description="trpo: multiple of the identity that is added to the Fisher matrix"
    )
    trpo_cg_iterations: Positive = Field(
        10, description="trpo: conjugate-gradient iterations, one Fisher-vector product over the rollout each"
    )
    trpo_line_search: Positive = Field(
        10, description="trpo: most step lengths that are tried; each is 0.8 times the one before"
    )
    dual_clip: Annotated[Finite, Field(gt=1.0)] | None = Field(
        None,
        description=(
            "c: where the advantage is negative, the loss of a token or response is at most c times its size; none: no"
            " limit"
        ),
    )
    gamma: Fraction = Field(1.0, description="discount factor per token")
    gae_lambda: Fraction = Field(0.95, description="lambda of the advantages")
    value_lambda: Fraction | None = Field(
        None, description="lambda of the returns that the critic is fitted to; none: gae_lambda"
    )
    # 0.5, as published, is biased too much for the few samples that are affordable: for normal scores 8 of them give
    # 0.70 of V* = 1.00; at 1.0 it is 0.41 of 0.50, and 16 samples give 0.45.
    v_star_beta: StrictlyPositive = Field(
        1.0,
        description=(
            "v_star: beta_1, the temperature of the soft maximum; a small one approaches the best score of a prompt, a"
            " large one the mean score"
        ),
    )
    v_star_samples: Positive | None = Field(
        None, description="v_star: samples of each prompt that are used, at most values.samples; none: all of them"
    )
    whiten_rewards: bool = Field(False, description="scale the rewards of a rollout to variance 1; their mean stays")
    whiten_advantages: bool = Field(
        True,
        description=(
            "scale the advantages of a rollout to mean 0 and variance 1: over its tokens, or over its responses where"
            " the ratio is of a response"
        ),
    )
    target_kl: StrictlyPositive | None = Field(
        None, description="nats per token: the epochs end before a step whose approxkl is above 1.5 times this"
    )

    @property
    def by_sequence(self) -> bool:
        """Whether the loss is one of whole responses: then all tokens of a response have its advantage."""
        return self.ratio in ("sequence_mean", "sequence_sum")

    @property
    def by_pairs(self) -> bool:
        """Whether the loss is one of pairs of responses."""
        return self.trust_region in PAIRWISE

    @property
    def needs_values(self) -> bool:
        """Whether the advantage needs scored samples of the reference."""
        return ADVANTAGES[self.advantage].values

    @property
    def learns(self) -> bool:
        """Whether the trial takes gradient steps."""
        return ADVANTAGES[self.advantage].learns

    @property
    def epsilons(self) -> tuple[float, float]:
        """The clip range below and above 1."""
        return self.cliprange, self.cliprange if self.cliprange_high is None else self.cliprange_high

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.ratio == "none" and self.trust_region != "none":
            raise ValueError(
                f"ratio 'none' leaves trust_region '{self.trust_region}' nothing to bound; use trust_region: none"
            )
        if self.by_pairs and not self.by_sequence:
            raise ValueError(
                f"trust_region '{self.trust_region}' compares whole responses, and ratio is '{self.ratio}'; use"
                " sequence_sum, or sequence_mean for margins per token"
            )
        if self.by_sequence and self.trust_region in ("kl_penalty", "trpo"):
            raise ValueError(
                f"trust_region '{self.trust_region}' bounds the KL per token, and ratio '{self.ratio}' is that of a"
                " whole response; use ratio: token"
            )
        if self.by_sequence and ADVANTAGES[self.advantage].varies:
            raise ValueError(
                f"ratio '{self.ratio}' needs one advantage for a whole response, and advantage '{self.advantage}' gives"
                " every token its own; use ratio: token or none"
            )
        if self.ratio == "sequence_mean" and self.trust_region == "clip" and max(self.epsilons) > LARGEST_MEAN_CLIP:
            raise ValueError(
                f"cliprange {max(self.epsilons):g} never clips a ratio that is averaged over a response: it leaves 1 by"
                " about 0.001; use 3e-4 and cliprange_high 4e-4, as GSPO does"
            )
        return self


class OptimiserConfig(Section):
    """Adam, its learning rate and what holds it back."""

    lr: NonNegative = Field(1e-4, description="learning rate of the policy network")
    lr_schedule: Literal["linear", "constant"] = Field("linear", description="linear: falls to 0 at the last step")
    adam_eps: StrictlyPositive = Field(1e-5, description="of Adam")
    max_grad_norm: StrictlyPositive = Field(
        1.0, description="gradients with a larger global norm are scaled down to it"
    )
    clip_norms: Literal["apart", "together"] = Field(
        "apart",
        description=(
            "of a separate critic; apart: max_grad_norm holds for policy and critic each; together: for both as one"
        ),
    )
    guard: bool = Field(
        False,
        description=(
            "reduce the learning rate of the policy, and of a critic on its trunk, when the KL per token of a rollout"
            " exceeds guard_kl"
        ),
    )
    guard_kl: StrictlyPositive = Field(0.015, description="nats per token")
    guard_factor: Fraction = Field(0.5, description="factor by which the guard reduces the learning rate")
    guard_steps: Positive = Field(
        100, description="number of gradient steps for which the guard reduces the learning rate"
    )
