"""Preferences that are collected in rounds: how the pairs and the updates of a trial are split, and what rounds rule
out."""

from __future__ import annotations

from typing import Any

from pipeline.config.rewards import LEARNED, is_judged

Config = Any
"""A `pipeline.config.trial.TrialConfig`, or a stage's view of one."""


def rounds_of(config: Config) -> int:
    """Times that a trial collects preferences and trains on; 1 where no judge labels pairs, or nothing is trained."""
    judged = any(part.kind in LEARNED and is_judged(part.preferences) for part in config.reward.scorers().values())
    return int(config.reward.rounds) if judged and config.algorithm.learns else 1


def last_update(updates: int, number: int, count: int) -> int:
    """The update, of `updates` in all, with which round `number` of `count` ends.

    >>> [last_update(12, number, 4) for number in (1, 2, 3, 4)]
    [3, 6, 9, 12]
    """
    return updates * number // count


def check_rounds(config: Config) -> None:
    """Raise `ValueError` where rounds do not divide what they split, or a setting depends on there being one
    reward."""
    count = rounds_of(config)
    if count == 1 and config.reward.against == "policy":
        raise ValueError(
            "reward.against 'policy': the opponent is the policy that a round began with, and here is one round, which"
            " begins with the reference; use against: reference, or reward.rounds above 1 with preferences of a judge"
        )
    if count == 1:
        return
    if config.reward.pairs % count:
        raise ValueError(
            f"reward.rounds {count} does not divide reward.pairs {config.reward.pairs}, which are the pairs of all"
            " rounds; use a multiple"
        )
    if config.train.updates % count:
        raise ValueError(
            f"reward.rounds {count} does not divide the {config.train.updates} updates of train.steps"
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
            f"{key} needs samples that one reward has scored, and reward.rounds is {count}, each with a reward of its"
            " own; use rounds: 1, or do without"
        )
    if config.critic.kind == "separate" and config.critic.init == "reward":
        raise ValueError(
            f"critic.init 'reward' needs one reward for the whole training, and reward.rounds is {count}; use"
            " reference, or rounds: 1"
        )
