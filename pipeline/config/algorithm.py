"""What trains the policy: the section `ppo`."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Fraction, NonNegative, Positive, Section, StrictlyPositive

KL_ERROR_CLIP = 0.2
"""Adaptive beta: the largest relative error of the KL that one rollout may report (Ziegler 2019)."""


class StopRule(Section):
    """A condition on a series that ends the trial as `pruned`: ``metric op threshold``, so many records in a row."""

    metric: str
    op: Literal[">", ">=", "<", "<="]
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    consecutive: Positive = 1
    before_step: Positive | None = Field(None, description="records with step < before_step count; none: all")


class PpoConfig(Section):
    """Proximal policy optimisation. Field names are those of the field (see PPO references in pipeline/algorithms)."""

    seed: int = Field(0, description="of initialisation, prompt order and sampling; studies set it")
    steps: Positive = Field(2_048, description="gradient steps in all; a whole number of updates")
    batch_size: Positive = Field(64, description="episodes in one rollout")
    num_mini_batches: Positive = Field(4, description="optimiser steps per epoch over the rollout")
    num_ppo_epochs: Positive = Field(4, description="passes over one rollout")
    response_length: Positive = Field(32, description="most tokens in a response")
    temperature: StrictlyPositive = Field(1.0, description="of sampling; all log-probabilities are at it")
    lr: NonNegative = Field(1e-4, description="learning rate of the policy network")
    value_head_lr: NonNegative | None = Field(
        None, description="learning rate of the value head, on the same schedule; none: lr"
    )
    lr_schedule: Literal["linear", "constant"] = Field("linear", description="linear falls to 0 at the last step")
    adam_eps: StrictlyPositive = Field(1e-5, description="of Adam")
    max_grad_norm: StrictlyPositive = Field(1.0, description="gradients are scaled down to this global norm")
    clip_norms: Literal["apart", "together"] = Field(
        "apart",
        description=(
            "of a separate critic; apart: max_grad_norm holds for policy and critic each; together: for both as one"
        ),
    )
    cliprange: StrictlyPositive = Field(0.2, description="epsilon")
    dual_clip: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = Field(
        None,
        description="c: the loss of a token with a negative advantage is at most c times the advantage; none: no limit",
    )
    cliprange_value: StrictlyPositive = Field(
        0.2, description="how far a value may move from that of the rollout before its error is clipped"
    )
    gamma: Fraction = Field(1.0, description="discount factor per token")
    gae_lambda: Fraction = Field(0.95, description="lambda")
    kl_coef: NonNegative = Field(0.05, description="beta; the starting value when kl_control is not fixed")
    vf_coef: NonNegative = Field(
        0.1,
        description=(
            "c1, of half the squared error: where a recipe's c1 multiplies the squared error itself, give twice its"
            " value"
        ),
    )
    ent_coef: NonNegative = Field(0.0, description="entropy bonus in the loss")
    whiten_rewards: bool = Field(False, description="scale the rewards of a rollout to variance 1; their mean stays")
    whiten_advantages: bool = Field(True, description="scale the advantages of a rollout to mean 0 and variance 1")
    missing_eos: Literal["replace", "subtract", "none"] = Field(
        "replace", description="what a response without EOS gets instead of its score"
    )
    missing_eos_penalty: NonNegative = Field(
        1.0, description="replace: score is minus this; subtract: this is subtracted"
    )
    kl_in: Literal["reward", "loss"] = Field(
        "reward",
        description=(
            "where the KL penalty acts: on every token's reward, or in the loss; "
            "whitening divides a beta in the reward by objective/advantage_std, and a beta in the loss by nothing"
        ),
    )
    kl_loss_estimator: Literal["k2", "k3"] = Field(
        "k2", description="estimator of the KL penalty in the loss; k1 is not offered, since its mean gradient is 0"
    )
    kl_control: Literal["fixed", "adaptive", "linear", "cosine", "piecewise"] = Field(
        "fixed",
        description="adaptive follows kl_target; linear and cosine go to kl_coef_end; piecewise follows kl_coef_stages",
    )
    kl_coef_end: NonNegative = Field(0.0, description="linear and cosine: beta of the last update")
    kl_coef_stages: tuple[tuple[Fraction, NonNegative], ...] = Field(
        (), description="piecewise: pairs [from this fraction of the trial on, beta]"
    )
    kl_target: StrictlyPositive = Field(6.0, description="adaptive beta: target in nats per sequence")
    kl_horizon: StrictlyPositive = Field(10_000, description="adaptive beta: horizon in episodes")
    lr_guard: bool = Field(
        False, description="reduce the learning rate when the KL per token of a rollout exceeds lr_guard_kl"
    )
    lr_guard_kl: StrictlyPositive = Field(0.015, description="nats per token")
    lr_guard_factor: Fraction = Field(0.5, description="factor by which the guard reduces the learning rate")
    lr_guard_steps: Positive = Field(
        100, description="number of gradient steps for which the guard reduces the learning rate"
    )
    kl_hinge: StrictlyPositive | None = Field(
        None,
        description=(
            "nats per token: while a mini-batch's KL to the reference is above it, its step shrinks to kl_hinge / KL"
        ),
    )
    target_kl: StrictlyPositive | None = Field(
        None, description="nats per token: the epochs end before a step whose approxkl is above 1.5 times this"
    )
    critic: Literal["shared", "separate"] = Field(
        "shared", description="shared: value head on the policy's trunk; separate: a trunk of its own"
    )
    critic_init: Literal["reference", "reward"] = Field("reference", description="what a separate critic starts as")
    critic_lr: NonNegative | None = Field(
        None, description="learning rate of a separate critic's trunk, on the same schedule; none: lr"
    )
    adapter: Literal["none", "lora"] = Field(
        "none", description="lora: train a low-rank adapter; the reference is then the same network"
    )
    lora_rank: Positive = Field(16, description="width of the adapter")
    lora_alpha: StrictlyPositive = Field(32.0, description="the adapter's output is multiplied by alpha / rank")
    quantize: Literal["none", "4bit"] = Field(
        "none", description="4bit: hold the frozen weights in NF4; needs adapter: lora and a GPU"
    )
    frozen_layers: Annotated[int, Field(ge=0)] = Field(
        0, description="lowest blocks that are not trained, embeddings included"
    )
    min_entropy: NonNegative = Field(
        0.01, description="nats per token: a rollout with less entropy has collapsed, and the trial ends as diverged"
    )
    max_repetition: Fraction = Field(
        0.8,
        description="share of repeated token pairs: above it a rollout has collapsed, and the trial ends as diverged",
    )
    stop: tuple[StopRule, ...] = Field(
        (), description="what ends the trial early; set by a study's falsifiers and its search"
    )

    @property
    def mini_batch_size(self) -> int:
        """Episodes in one optimiser step."""
        return self.batch_size // self.num_mini_batches

    @property
    def steps_per_update(self) -> int:
        """Optimiser steps in one update."""
        return self.num_ppo_epochs * self.num_mini_batches

    @property
    def updates(self) -> int:
        """Rollouts in a trial."""
        return self.steps // self.steps_per_update

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.batch_size % self.num_mini_batches:
            raise ValueError(f"batch_size {self.batch_size} is no multiple of num_mini_batches {self.num_mini_batches}")
        if self.steps % self.steps_per_update:
            below = self.steps // self.steps_per_update * self.steps_per_update
            raise ValueError(
                f"steps {self.steps} is no whole number of updates of {self.steps_per_update} gradient steps"
                f" (num_ppo_epochs x num_mini_batches); nearest: {max(below, self.steps_per_update)} or"
                f" {below + self.steps_per_update}"
            )
        if self.quantize != "none" and self.adapter != "lora":
            raise ValueError(
                "quantize '4bit' holds frozen weights, and without an adapter none is frozen; set adapter: lora"
            )
        if self.adapter == "lora" and self.frozen_layers:
            raise ValueError(
                "frozen_layers and adapter: lora exclude each other; an adapter freezes every layer already"
            )
        self._check_stages()
        least = KL_ERROR_CLIP * self.batch_size
        if self.kl_control == "adaptive" and self.kl_horizon <= least:
            raise ValueError(
                f"kl_horizon {self.kl_horizon:g} lets one rollout take beta to 0 or below; above 0.2 x batch_size ="
                f" {least:g}"
            )
        return self

    def _check_stages(self) -> None:
        starts = [start for start, _ in self.kl_coef_stages]
        if bool(starts) != (self.kl_control == "piecewise"):
            raise ValueError(
                "kl_coef_stages and kl_control: piecewise need each other; for example kl_coef_stages: [[0.25, 0.1],"
                " [0.5, 0.05]]"
            )
        if any(late <= early for early, late in itertools.pairwise(starts)):
            raise ValueError(f"kl_coef_stages: the fractions {starts} must rise")
