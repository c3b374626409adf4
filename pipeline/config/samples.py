"""Samples beside those of rollouts: the sections `values` (the reference, before training) and `replay` (states of a
rollout, sampled onwards)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.config.base import Positive, Section
from pipeline.config.effects import Config, When


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

    continuations: Positive = Field(4, description="K, samples of each state; its value is their mean")
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
