"""Advantages without a critic, by hand: two prompts of two responses each, of 2, 1, 3 and 1 tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers import trial_config
from naive import drawn, prefix
from torch import Tensor

from pipeline.algorithms.base import Judged
from pipeline.algorithms.baselines import EPSILON
from pipeline.algorithms.mathematics.masking import masked_whiten
from pipeline.algorithms.registry import ESTIMATORS
from pipeline.config.presets import ADVANTAGES

MASK = prefix([[1, 2], [3], [4, 5, 6], [7]])
LENGTHS = [2, 1, 3, 1]
SCORES = [1.0, 3.0, 2.0, 4.0]


def judged(scores: list[float], penalty: float = 0.0) -> Judged:
    """`penalty` on every token; the greedy responses are worth 1 and 2."""
    non_score, greedy = torch.where(MASK, penalty, 0.0).double(), torch.tensor([1.0, 1.0, 2.0, 2.0]).double()
    return Judged(torch.tensor(scores).double(), non_score, None, MASK, torch.tensor([0, 0, 1, 1]), greedy)


def estimated(name: str, scores: list[float], penalty: float = 0.0, gamma: float = 1.0) -> Tensor:
    found = ESTIMATORS[name](judged(scores, penalty), trial_config(algorithm__gamma=gamma).algorithm)
    assert found.returns is None
    assert not found.advantages[~MASK].any()
    return found.advantages


def test_every_advantage_that_can_be_asked_for_is_there() -> None:
    assert ESTIMATORS.keys() == {name for name, need in ADVANTAGES.items() if need.learns}


@pytest.mark.parametrize(
    ("name", "worth"),
    [
        ("reinforce", [-1.5, 0.5, -0.5, 1.5]),
        ("rloo", [-2.0, 2.0, -2.0, 2.0]),
        ("group_mean", [-1.0, 1.0, -1.0, 1.0]),
        ("group_norm", [sign / (math.sqrt(2) + EPSILON) for sign in (-1, 1, -1, 1)]),
        ("group_mean_batch_std", [sign / (math.sqrt(5 / 3) + EPSILON) for sign in (-1, 1, -1, 1)]),
        ("reinforce_pp", SCORES),
        ("remax", [0.0, 2.0, 0.0, 2.0]),
    ],
)
def test_a_response_has_one_advantage_on_all_its_tokens(name: str, worth: list[float]) -> None:
    """Mean 2.5; groups 1 and 3, 2 and 4, with sd sqrt 2; of all scores the variance is 5/3."""
    found = estimated(name, SCORES)
    for row, length, wanted in zip(found, LENGTHS, worth, strict=True):
        assert row[:length].tolist() == pytest.approx([wanted] * length)


@pytest.mark.parametrize("name", ["reinforce", "rloo", "group_mean", "group_norm", "group_mean_batch_std"])
def test_a_penalty_on_the_tokens_is_added_after_the_comparison(name: str) -> None:
    """-0.5 a token: of three tokens the first has -1.5 before it, the last -0.5."""
    apart = estimated(name, SCORES, -0.5) - estimated(name, SCORES)
    torch.testing.assert_close(apart[2], torch.tensor([-1.5, -1.0, -0.5]).double())
    torch.testing.assert_close(apart[0], torch.tensor([-1.0, -0.5, 0.0]).double())


def test_rewards_to_the_end_by_hand_with_a_discount() -> None:
    """Score 2 on the last of three tokens, -0.5 on each, gamma 0.5: 1.5, then -0.5 + 0.75, then -0.5 + 0.125."""
    found = estimated("reinforce_pp", [0.0, 0.0, 2.0, 0.0], -0.5, gamma=0.5)
    assert found[2].tolist() == pytest.approx([-0.375, 0.25, 1.5])


def test_the_greedy_reward_is_subtracted_from_every_token() -> None:
    """Rewards to the end of the third response, -0.5 a token: 0.5, 1 and 1.5, less 2."""
    assert estimated("remax", SCORES, -0.5)[2].tolist() == pytest.approx([-1.5, -1.0, -0.5])


def test_remax_without_greedy_responses_is_refused() -> None:
    bare = replace(judged(SCORES), greedy=None)
    with pytest.raises(ValueError, match="needs the greedy responses"):
        ESTIMATORS["remax"](bare, trial_config().algorithm)


def test_reinforce_pp_without_a_penalty_is_the_whitened_score() -> None:
    """Whitened over tokens, so that a score counts as often as its response has tokens."""
    white = masked_whiten(estimated("reinforce_pp", SCORES), MASK)
    tokens = [score for score, length in zip(SCORES, LENGTHS, strict=True) for _ in range(length)]
    mean = sum(tokens) / 7
    sd = math.sqrt(sum((token - mean) ** 2 for token in tokens) / 7)
    assert white[MASK].tolist() == pytest.approx([(token - mean) / sd for token in tokens], rel=1e-6)


def test_a_critic_that_knows_nothing_and_the_group_mean() -> None:
    """lambda 1 and V 0 are rewards to the end: minus the group's mean they are its baseline's advantages."""
    means = torch.tensor([2.0, 2.0, 3.0, 3.0]).double()
    known = Judged(
        torch.tensor(SCORES).double() - means, judged(SCORES, -0.2).non_score, torch.zeros(4, 3).double(), MASK,
        judged(SCORES).groups,
    )  # fmt: skip
    by_critic = ESTIMATORS["gae"](known, trial_config(algorithm__gae_lambda=1.0).algorithm)
    torch.testing.assert_close(by_critic.advantages, estimated("group_mean", SCORES, -0.2))


@pytest.mark.parametrize(
    "name", [name for name, need in ADVANTAGES.items() if need.least_responses > 1 and not need.most_responses]
)
def test_the_order_of_responses_does_not_matter(name: str) -> None:
    mask, order = prefix([[1], [2, 3], [4], [5], [6, 7], [8]]), torch.tensor([5, 0, 3, 1, 4, 2])
    scores, penalty, groups = drawn(6, seed=1), drawn(6, 2, seed=2), torch.tensor([0, 0, 0, 1, 1, 1])
    cfg = trial_config().algorithm
    plain = ESTIMATORS[name](Judged(scores, torch.where(mask, penalty, 0.0), None, mask, groups), cfg)
    turned = Judged(scores[order], torch.where(mask, penalty, 0.0)[order], None, mask[order], groups[order] + 5)
    torch.testing.assert_close(ESTIMATORS[name](turned, cfg).advantages, plain.advantages[order])
