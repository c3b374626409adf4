"""Combinations of rewards, opponents and judges that make no sense are refused with the reason; the others are not."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UserError

PAIRWISE = {"reward.kind": "pairwise", "reward.against": "reference"}
CRITIC = {"critic.kind": "separate", "critic.init": "reward"}
PARTS = {"good": {"kind": "pairwise"}, "short": {"kind": "lexicon", "weight": -0.5}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward.kind": "pairwise"}, r"reward\.kind 'pairwise' compares two answers, and reward\.against is 'none'"),
        (
            {"reward.kind": "composite", "reward.parts": PARTS},
            r"reward\.parts\.good\.kind 'pairwise' compares two answers, and reward\.against is 'none'",
        ),
        ({**PAIRWISE, "reward.dimension": 3}, r"reward\.dimension = 3: must be a multiple of 2"),
        ({**PAIRWISE, "reward.ensemble": 3}, r"by their scores, and kind 'pairwise' has none"),
        (
            {"reward.against": "reference", "reward.ensemble": 3},
            r"a score less that of opponents, and against is 'reference'",
        ),
        ({"reward.against": "refrence"}, r"did you mean 'reference'\?"),
        ({**PAIRWISE, **CRITIC}, r"needs a reward that is a network with a score, reward\.kind is 'pairwise'"),
        (
            {"reward.against": "reference", **CRITIC},
            r"critic\.init 'reward' starts the critic at the reward model's score",
        ),
        ({"reward.kind": "cycle"}, r"reward\.kind = 'cycle': must be 'learned', 'pairwise'"),
        (
            {"judge.kind": "cycle", "data.source": "local", "data.path": "/reviews"},
            r"judge\.kind 'cycle' understands only built-in reviews, data\.source is 'local'",
        ),
        (
            {"reward.kind": "lexicon", "reward.preferences": "labels"},
            r"are for kind: learned or pairwise, kind is 'lexicon'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config("tiny", settings)


@pytest.mark.parametrize(
    "settings",
    [
        PAIRWISE,
        {**PAIRWISE, "algorithm": "dpo"},
        {**PAIRWISE, "judge.kind": "cycle"},
        {"reward.kind": "lexicon", "reward.against": "reference"},
        {"reward.kind": "composite", "reward.parts": PARTS, "reward.against": "reference"},
    ],
)
def test_what_makes_sense_is_not(settings: dict[str, Any]) -> None:
    load_config("tiny", settings)


def test_the_defaults_are_those_of_before() -> None:
    reward = load_config("tiny", {}).reward
    assert (reward.kind, reward.against) == ("learned", "none")
