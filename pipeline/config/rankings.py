"""What rankings of several answers need, in place of pairs."""

from __future__ import annotations

from typing import Any

from pipeline.config.rewards import JUDGE, LEARNED, part_key
from pipeline.config.rounds import rounds_of

Config = Any
"""A `pipeline.config.trial.TrialConfig`, or a stage's view of one."""


def check_rankings(config: Config) -> None:
    """Raise `ValueError` where more than two answers cannot be ranked together."""
    reward = config.reward
    learned = {name: part for name, part in reward.scorers().items() if part.kind in LEARNED}
    if reward.ranked == 2 or not learned:
        return
    if reward.comparisons > reward.pairs:
        raise ValueError(
            f"reward.ranked {reward.ranked}: one ranking makes {reward.comparisons} pairs, and reward.pairs is"
            f" {reward.pairs}; raise it, or rank fewer answers"
        )
    if rounds_of(config) > 1:
        raise ValueError(
            f"reward.rounds {reward.rounds} collects pairs, and reward.ranked is {reward.ranked}; use ranked: 2, or"
            " rounds: 1"
        )
    for name, part in learned.items():
        key = part_key(name, reward.kind == "composite")
        if part.preferences == "labels":
            raise ValueError(
                f"{key}.preferences 'labels' pairs a positive with a negative review, and reward.ranked is"
                f" {reward.ranked}; use judge, a file of rankings, or ranked: 2"
            )
        if part.preferences == JUDGE and config.judge.kind == "cycle":
            raise ValueError(
                f"reward.ranked {reward.ranked}: the preferences of judge.kind 'cycle' are no order; use ranked: 2, or"
                " another judge"
            )
        if part.kind == "pairwise" and reward.ranking_loss == "plackett_luce":
            raise ValueError(
                f"reward.ranking_loss 'plackett_luce' needs a score of each answer, and {key}.kind is 'pairwise', which"
                " has none; use all_pairs, or kind: learned"
            )
