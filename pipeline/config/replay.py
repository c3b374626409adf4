"""Which states of a rollout are sampled onwards, and how often: the section `replay`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.config.base import Positive, Section
from pipeline.config.effects import When


class ReplayConfig(Section):
    """States of a rollout, sampled onwards by the policy that made it and scored: what they are worth, without a
    critic."""

    continuations: Positive = Field(4, description="K, samples of each state; its value is their mean")
    every: Positive = Field(
        8, description="tokens from one replayed state of a response to the next; the first is the prompt itself"
    )
    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="share of the episodes of a rollout whose states are replayed"
    )


def has_replay(config: Any) -> bool:
    """Whether a trial of this configuration, or of these sections of one, samples states of its rollouts onwards."""
    return ADVANTAGES[config.algorithm.advantage].replay or teaches(config)


def teaches(config: Any) -> bool:
    """Whether replayed states are what a critic is fitted to."""
    critic = config.critic
    return bool(critic.target == "replay" and critic.kind != "none" and critic.vf_coef > 0)


REPLAY = When("algorithm.advantage: replay or critic.target: replay", has_replay, "critic.target")
