"""Rollouts and the gradient steps taken on them, and further samples: the sections `train`, `values` (of the reference,
before training) and `replay` (states of a rollout, sampled onwards)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.config.base import Finite, Fraction, NonNegative, Positive, Section, Seed, StrictlyPositive, Tokens
from pipeline.config.effects import Always, Config, When, above, setting

ROLLOUTS = setting("train.data", "rollouts")


class StopRule(Section):
    """A condition on a series that ends the trial as `pruned`: ``metric op threshold``, so many records in a row."""

    metric: str
    op: Literal[">", ">=", "<", "<="]
    threshold: Finite
    consecutive: Positive = 1
    before_step: Positive | None = Field(None, description="records with step < before_step count; none: all")


class TrainConfig(Section):
    """Rollouts, and the gradient steps taken on each."""

    seed: Annotated[Seed, Always()] = Field(
        0, description="seed of initialisation, prompt order and sampling; studies set it"
    )
    steps: Positive = Field(2_048, description="gradient steps in all; a whole number of updates")
    data: Literal["rollouts", "pairs"] = Field(
        "rollouts",
        description=(
            "rollouts: learn from the policy's own samples; pairs: learn from the pairs that trained the reward,"
            " batch_size responses an update, while rollouts are sampled for metrics"
        ),
    )
    batch_size: Positive = Field(64, description="episodes in one rollout")
    responses_per_prompt: Positive = Field(
        1, description="episodes that answer one prompt: a rollout has batch_size / this prompts"
    )
    num_mini_batches: Positive = Field(4, description="optimiser steps per epoch over the rollout")
    num_epochs: Positive = Field(4, description="number of passes over a rollout")
    response_length: Annotated[Tokens, Always()] = Field(32, description="largest number of tokens in a response")
    temperature: Annotated[StrictlyPositive, Always()] = Field(
        1.0, description="sampling temperature; log-probabilities are computed at the same temperature"
    )
    missing_eos: Annotated[Literal["replace", "none"], ROLLOUTS] = Field(
        "replace", description="what a response without EOS gets instead of its score"
    )
    missing_eos_penalty: Annotated[NonNegative, setting("train.missing_eos", "replace"), ROLLOUTS] = Field(
        1.0, description="the score is minus this"
    )
    overlong_share: Annotated[Fraction, ROLLOUTS] = Field(
        0.0, description="share of response_length at its end over which overlong_penalty grows; 0: no such penalty"
    )
    overlong_penalty: Annotated[NonNegative, above("train.overlong_share"), ROLLOUTS] = Field(
        1.0, description="in score units: subtracted in full from a response that is cut, in part from one nearly so"
    )
    stop: Annotated[tuple[StopRule, ...], Always()] = Field(
        (), description="what ends the trial early; set by a study's falsifiers and its search"
    )

    @property
    def mini_batch_size(self) -> int:
        return self.batch_size // self.num_mini_batches

    @property
    def steps_per_update(self) -> int:
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


class ValuesConfig(Section):
    """Samples of the reference on the training prompts, which the stage `values` draws for algorithms that need
    them."""

    samples: Positive = Field(
        16, description="responses of the reference to each training prompt, scored once for all trials that share them"
    )


SAMPLES_USED = When(
    "algorithm.advantage: v_star or critic.pretraining_steps above 0",
    lambda config: config.needs_samples,
    "critic.pretraining_steps",
)


class ReplayConfig(Section):
    """States of a rollout, sampled onwards by the policy that made it and scored: what they are worth, without a
    critic."""

    continuations: Positive = Field(
        4, description="K, continuations sampled from each state; the mean of their scores is its value"
    )
    every: Positive = Field(
        8,
        description="tokens between replayed states of a response; the first state is the end of the prompt",
    )
    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="share of the episodes of a rollout whose states are replayed"
    )


def has_replay(config: Config) -> bool:
    """Return whether a trial with this configuration, or these sections of one, samples states of rollouts onwards."""
    return ADVANTAGES[config.algorithm.advantage].replay or teaches(config)


def teaches(config: Config) -> bool:
    """Return whether replayed states are what a critic is fitted to."""
    critic = config.critic
    return bool(critic.target == "replay" and critic.kind != "none" and critic.vf_coef > 0)


REPLAY = When("algorithm.advantage: replay or critic.target: replay", has_replay, "critic.target")


def only_watched(config: Config) -> bool:
    """Return whether rollouts neither teach nor steer the policy: then they are no cost of the algorithm."""
    steered = config.optimiser.guard or "adaptive" in (config.kl.control, config.entropy.control)
    return bool(config.train.data == "pairs" and not steered)
