"""How a policy is trained: the sections `train`, `algorithm` and `optimiser`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Fraction, NonNegative, Positive, Section, StrictlyPositive
from pipeline.config.presets import PRESETS


class StopRule(Section):
    """A condition on a series that ends the trial as `pruned`: ``metric op threshold``, so many records in a row."""

    metric: str
    op: Literal[">", ">=", "<", "<="]
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    consecutive: Positive = 1
    before_step: Positive | None = Field(None, description="records with step < before_step count; none: all")


class TrainConfig(Section):
    """Rollouts, and the gradient steps taken on each."""

    seed: int = Field(0, description="of initialisation, prompt order and sampling; studies set it")
    steps: Positive = Field(2_048, description="gradient steps in all; a whole number of updates")
    batch_size: Positive = Field(64, description="episodes in one rollout")
    responses_per_prompt: Positive = Field(
        1, description="episodes that answer one prompt: a rollout has batch_size / this prompts"
    )
    num_mini_batches: Positive = Field(4, description="optimiser steps per epoch over the rollout")
    num_epochs: Positive = Field(4, description="passes over one rollout")
    response_length: Positive = Field(32, description="most tokens in a response")
    temperature: StrictlyPositive = Field(1.0, description="of sampling; all log-probabilities are at it")
    missing_eos: Literal["replace", "subtract", "none"] = Field(
        "replace", description="what a response without EOS gets instead of its score"
    )
    missing_eos_penalty: NonNegative = Field(
        1.0, description="replace: score is minus this; subtract: this is subtracted"
    )
    min_entropy: NonNegative = Field(
        0.01, description="nats per token; a rollout with less entropy has collapsed, and the trial ends as diverged"
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
        return self.num_epochs * self.num_mini_batches

    @property
    def updates(self) -> int:
        """Rollouts in a trial."""
        return self.steps // self.steps_per_update

    @model_validator(mode="after")
    def _whole_numbers(self) -> Self:
        for parts in ("num_mini_batches", "responses_per_prompt"):
            if self.batch_size % getattr(self, parts):
                raise ValueError(f"batch_size {self.batch_size} is no multiple of {parts} {getattr(self, parts)}")
        if self.steps % self.steps_per_update:
            below = self.steps // self.steps_per_update * self.steps_per_update
            raise ValueError(
                f"steps {self.steps} is no whole number of updates of {self.steps_per_update} gradient steps"
                f" (num_epochs x num_mini_batches); nearest: {max(below, self.steps_per_update)} or"
                f" {below + self.steps_per_update}"
            )
        return self


class AlgorithmConfig(Section):
    """What the policy's loss is made of. An arm may write ``algorithm: rloo`` for ``algorithm.name: rloo``."""

    name: Literal[tuple(PRESETS)] = Field(  # type: ignore[valid-type]
        "ppo", description="; ".join(f"{name}: {preset.summary}" for name, preset in PRESETS.items())
    )
    cliprange: StrictlyPositive = Field(0.2, description="epsilon")
    dual_clip: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = Field(
        None,
        description=(
            "c: where the advantage is negative, the loss of a token or response is at most c times its size; none: no"
            " limit"
        ),
    )
    gamma: Fraction = Field(1.0, description="discount factor per token")
    gae_lambda: Fraction = Field(0.95, description="lambda")
    ent_coef: NonNegative = Field(0.0, description="entropy bonus in the loss")
    whiten_rewards: bool = Field(False, description="scale the rewards of a rollout to variance 1; their mean stays")
    whiten_advantages: bool = Field(
        True, description="scale the advantages of a rollout to mean 0 and variance 1; over tokens, or over responses"
    )
    target_kl: StrictlyPositive | None = Field(
        None, description="nats per token: the epochs end before a step whose approxkl is above 1.5 times this"
    )


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
        False, description="reduce the learning rate when the KL per token of a rollout exceeds guard_kl"
    )
    guard_kl: StrictlyPositive = Field(0.015, description="nats per token")
    guard_factor: Fraction = Field(0.5, description="factor by which the guard reduces the learning rate")
    guard_steps: Positive = Field(
        100, description="number of gradient steps for which the guard reduces the learning rate"
    )
