"""Rankings of several answers: what they count as, and what they rule out."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import smoke

from pipeline.config.loading import load_config
from pipeline.errors import UserError

COMPOSITE = {"reward.kind": "composite", "reward.ranked": 4}


def test_a_ranking_counts_as_its_pairs() -> None:
    assert (smoke().reward.comparisons, smoke().reward.rankings) == (1, 256)
    four = smoke(reward__ranked=4).reward
    assert (four.comparisons, four.rankings) == (6, 42)
    assert smoke(reward__ranked=4, reward__batch_size=64).reward.rankings_in_step == 10
    assert smoke(reward__ranked=9, reward__batch_size=8).reward.rankings_in_step == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward.ranked": 1}, "reward.ranked"),
        ({"reward.ranked": 24}, "reward.ranked 24: one ranking makes 276 pairs, and reward.pairs is 256"),
        ({"reward.ranked": 4, "reward.rounds": 2}, "reward.rounds 2 collects pairs, and reward.ranked is 4"),
        (
            {"reward.ranked": 3, "reward.preferences": "labels"},
            "reward.preferences 'labels' pairs a positive with a negative review, and reward.ranked is 3",
        ),
        ({"reward.ranked": 3, "judge.kind": "cycle"}, "the preferences of judge.kind 'cycle' are no order"),
        (
            {
                "reward.ranked": 3,
                "reward.kind": "pairwise",
                "reward.against": "reference",
                "reward.ranking_loss": "plackett_luce",
            },
            "reward.ranking_loss 'plackett_luce' needs a score of each answer, and reward.kind is 'pairwise'",
        ),
        (
            {**COMPOSITE, "reward.parts": {"good": {"kind": "learned", "preferences": "labels"}}},
            "reward.parts.good.preferences 'labels' pairs",
        ),
        ({"reward.ranking_loss": "plackett_luce"}, "it needs reward.ranked above 2"),
        ({"reward.ranked": 4, "reward.kind": "lexicon"}, "reward.ranked = 4 has no effect"),
    ],
)
def test_what_cannot_be_ranked_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said.replace(".", r"\.").replace("(", r"\(")):
        load_config("smoke", changes)
