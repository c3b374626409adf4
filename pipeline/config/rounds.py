"""Preferences that are collected in rounds: what they rule out."""

from __future__ import annotations

from pipeline.config.effects import Config
from pipeline.rewards.learned_settings import is_judged


def rounds_of(config: Config) -> int:
    """Times that a trial collects preferences and trains on; 1 where no judge labels pairs, or nothing is trained."""
    judged = any(is_judged(part.preferences) for part in config.reward.trained().values())
    return int(config.reward.learned.rounds) if judged and config.algorithm.learns else 1


def check_rounds(config: Config) -> None:
    """Raise `ValueError` where rounds do not divide what they split, or a setting depends on there being one
    reward."""
    count = rounds_of(config)
    if count == 1:
        return
    if config.reward.learned.pairs % count:
        raise ValueError(
            f"reward.learned.rounds {count} does not divide reward.learned.pairs {config.reward.learned.pairs}, which"
            " are the pairs of all rounds; use a multiple"
        )
    if config.train.updates % count:
        raise ValueError(
            f"reward.learned.rounds {count} does not divide the {config.train.updates} updates of train.steps"
            f" {config.train.steps}, which are those of all rounds; use a multiple of"
            f" {count * config.train.steps_per_update} steps"
        )
    if config.needs_samples:
        key = (
            "algorithm.advantage 'v_star'"
            if config.algorithm.needs_values
            else f"critic.pretraining_steps {config.critic.pretraining_steps}"
        )
        raise ValueError(
            f"{key} needs samples that one reward has scored, and reward.learned.rounds is {count}, each with a"
            " reward of its own; use rounds: 1, or do without"
        )
    if config.critic.starts_as_reward:
        raise ValueError(
            f"critic.init 'reward' needs one reward for the whole training, and reward.learned.rounds is {count}; use"
            " reference, or rounds: 1"
        )
