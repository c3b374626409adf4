"""Rewards per token: the KL penalty on tokens and on groups of them, the place of the score, what a response without
EOS gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from naive import drawn, grid, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.shaping import (
    group_non_score_reward,
    handle_missing_eos,
    non_score_reward,
    overlong,
    token_rewards,
    with_floor,
)
from pipeline.algorithms.mathematics.token_groups import credited, group_ends, group_numbers, group_sums

NAN = float("nan")


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def test_missing_eos_by_hand() -> None:
    scores, ended = f64(2.0, 3.0, -4.0), torch.tensor([True, False, False])
    assert handle_missing_eos(scores, ended, "replace", 1.0).tolist() == [2.0, -1.0, -1.0]
    assert handle_missing_eos(scores, ended, "subtract", 1.0).tolist() == [2.0, 2.0, -5.0]
    assert handle_missing_eos(scores, ended, "none", 1.0).tolist() == [2.0, 3.0, -4.0]


def test_overlong_by_hand() -> None:
    """Half of 8 tokens: none off up to 4, half of the penalty off at 6, all of it at 8 and where the response is
    cut."""
    lengths, ended = torch.tensor([3, 4, 6, 8, 8]), torch.tensor([True, True, True, True, False])
    found = overlong(f64(1, 1, 1, 1, 1), lengths, ended, 8, 0.5, 3.0)
    assert found.tolist() == [1.0, 1.0, -0.5, -2.0, -2.0]
    assert overlong(found, lengths, ended, 8, 0.0, 3.0) is found


def test_score_by_hand_on_the_last_valid_token() -> None:
    mask = prefix([[1, 2], [1, 2, 3], [1]])
    penalty = grid([[-0.1, 0.05], [0.0, -0.1, 0.0], [0.2]], junk=0.0)
    rewards = token_rewards(f64(5.0, 7.0, -1.0), penalty, mask)
    expected = [[-0.1, 5.05, 0.0], [0.0, -0.1, 7.0], [-0.8, 0.0, 0.0]]
    assert rewards.tolist() == [pytest.approx(row) for row in expected]
    with pytest.raises(ValueError, match="no valid token"):
        token_rewards(f64(1.0, 1.0), torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))


def test_the_part_with_a_floor_is_added_and_the_scale_kept() -> None:
    proxy, part = f64(1.0, -2.0), f64(-3.0, 4.0)
    assert with_floor(proxy, part, 0.0).tolist() == [1.0, -2.0]
    assert with_floor(proxy, part, 3.0).tolist() == [-2.0, 2.5]


def test_penalty_by_hand() -> None:
    # The first token is e times as likely as under the reference and costs 0.1; the second is less likely and earns
    # 0.05.
    logprobs, ref = grid([[-1.0, -2.0], [-1.0, -1.0, -1.0]]), grid([[-2.0, -1.5], [-1.0, -2.0, -1.0]])
    mask = prefix([[1, 2], [1, 2, 3]])
    penalty = non_score_reward(logprobs, ref, mask, 0.1)
    assert penalty.tolist() == [pytest.approx([-0.1, 0.05, 0.0]), pytest.approx([0.0, -0.1, 0.0])]


def test_penalty_on_groups_by_hand() -> None:
    """Groups of log-ratios (1, -0.4) and (0.2); and of (0.5), (-0.3, 0.1, 0.5), the last of them cut."""
    d, mask = grid([[1.0, -0.4, 0.2], [0.5, -0.3, 0.1, 0.5]]), prefix([[1, 2, 3], [1, 2, 3, 4]])
    groups = group_numbers(torch.tensor([[False, True, False, True], [True, False, False, False]]))

    def found(credit: Any) -> list[list[float]]:
        rows: list[list[float]] = group_non_score_reward(d, d * 0, mask, groups, 0.1, credit).tolist()
        return rows

    third = -0.1 * 0.3 / 3
    shared = [pytest.approx([-0.03, -0.03, -0.02, 0.0]), pytest.approx([-0.05, third, third, third])]
    assert found("shared") == shared
    assert found("last") == [pytest.approx([0, -0.06, -0.02, 0]), pytest.approx([-0.05, 0, 0, -0.03])]


def test_groups_of_one_token_are_tokens_and_a_whole_response_on_its_last_is_a_penalty_in_the_score() -> None:
    x, mask, scores = drawn(3, 5, seed=3), prefix([[1, 2, 3, 4, 5], [1], [1, 2]]), drawn(3, seed=4)
    alone = group_numbers(torch.ones_like(mask))
    plain = non_score_reward(x, x * 0, mask, 0.05)
    for credit in ("shared", "last"):
        found = group_non_score_reward(x, x * 0, mask, alone, 0.05, credit)  # type: ignore[arg-type]
        assert torch.equal(found, plain)
    whole = group_non_score_reward(x, x * 0, mask, torch.zeros(3, 5, dtype=torch.long), 0.3, "last")
    in_score = token_rewards(scores - 0.3 * torch.where(mask, x, 0.0).sum(1), torch.zeros_like(x), mask)
    torch.testing.assert_close(token_rewards(scores, whole, mask), in_score, rtol=1e-12, atol=1e-12)


def test_groups_by_hand() -> None:
    """The second row is cut within its last group; no token behind it counts."""
    closes = torch.tensor([[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 1, 1]]).bool()
    mask, x = prefix([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]), grid([[1.0, 2, 4, 8, 16, 32], [1, 2, 4, 8]])
    groups = group_numbers(closes)
    assert groups.tolist() == [[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1, 2]]
    assert group_sums(x, groups, mask).tolist() == [[3, 3, 28, 28, 28, 32], [7, 7, 7, 8, 0, 0]]
    assert group_ends(groups, mask).int().tolist() == [[0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]]
    whole = torch.tensor([[6.0, 6, 9, 9, 9, 7], [6, 6, 6, 8, NAN, NAN]])
    assert credited(whole, groups, mask, "shared").tolist() == [[3, 3, 3, 3, 3, 7], [2, 2, 2, 8, 0, 0]]
    assert credited(whole, groups, mask, "last").tolist() == [[0, 6, 0, 0, 9, 7], [0, 0, 6, 8, 0, 0]]
