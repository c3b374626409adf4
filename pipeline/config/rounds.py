"""Preferences that are collected in rounds: what they rule out."""

from __future__ import annotations

from pipeline.config.base import refuse
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
    rounds, pairs, train = f"reward.learned.rounds {count}", config.reward.learned.pairs, config.train
    values = "algorithm.advantage 'v_star'"
    if not config.algorithm.needs_values:
        values = f"critic.pretraining_steps {config.critic.pretraining_steps}"
    refuse({
        f"{rounds} does not divide reward.learned.pairs {pairs}, which are the pairs of all rounds; use a multiple": (
            bool(pairs % count)
        ),
        f"{rounds} does not divide the {train.updates} updates of train.steps {train.steps}, which are those of all"
        f" rounds; use a multiple of {count * train.steps_per_update} steps": bool(train.updates % count),
        f"{values} needs samples that one reward has scored, and reward.learned.rounds is {count}, each with a reward"
        " of its own; use rounds: 1, or do without": config.needs_samples,
        f"critic.init 'reward' needs one reward for the whole training, and reward.learned.rounds is {count}; use"
        " reference, or rounds: 1": config.critic.starts_as_reward,
    })  # fmt: skip
