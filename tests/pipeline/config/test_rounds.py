"""Preferences in rounds: how a trial is split, and what rounds rule out."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import smoke

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.training.rounds import last_update


def test_a_trial_has_one_round_unless_it_asks_for_more() -> None:
    assert smoke().rounds == 1
    assert smoke(reward__learned__rounds=4).rounds == 4


def test_rounds_split_the_updates_evenly_and_lose_none() -> None:
    ends = [last_update(128, number, 4) for number in range(5)]
    assert ends == [0, 32, 64, 96, 128]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward.learned.rounds": 3}, "reward.learned.rounds 3 does not divide reward.learned.pairs 256"),
        (
            {"reward.learned.rounds": 16},
            "reward.learned.rounds 16 does not divide the 8 updates of train.steps 32, which are those of all rounds;"
            " use a multiple of 64 steps",
        ),
        (
            {"reward.learned.rounds": 2, "critic.pretraining_steps": 10},
            "critic.pretraining_steps 10 needs samples that one reward has scored, and reward.learned.rounds is 2",
        ),
        (
            {"reward.learned.rounds": 2, "algorithm": "a_star_po"},
            "algorithm.advantage 'v_star' needs samples that one reward has scored, and reward.learned.rounds is 2",
        ),
        (
            {"reward.learned.rounds": 2, "critic.kind": "separate", "critic.init": "reward"},
            "critic.init 'reward' needs one reward for the whole training, and reward.learned.rounds is 2",
        ),
        (
            {"reward.learned.rounds": 2, "reward.kind": "lexicon"},
            "reward.learned.rounds = 2 has no effect while reward.kind is",
        ),
        ({"reward.learned.rounds": 2, "algorithm": "best_of_n"}, "it needs an algorithm that takes gradient steps"),
        (
            {"reward.learned.keep_pairs": "newest"},
            "reward.learned.keep_pairs = newest has no effect while reward.learned.rounds is 1",
        ),
        ({"reward.learned.rounds": 0}, "reward.learned.rounds"),
        ({"reward.against": "policy"}, "the opponent is the policy that a round began with, and here is one round"),
    ],
)
def test_what_makes_no_sense_with_rounds_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        load_config("smoke", changes)
