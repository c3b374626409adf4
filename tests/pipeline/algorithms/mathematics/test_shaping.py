"""Rewards per token: the KL penalty, the place of the score, what a response without EOS gets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import DTYPES, close, drawn, eps, exact, grid, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.shaping import (
    group_non_score_reward,
    handle_missing_eos,
    non_score_reward,
    token_rewards,
    with_floor,
)
from pipeline.algorithms.mathematics.token_groups import group_numbers

NAN = float("nan")
ragged = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=4)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


# --- missing EOS -------------------------------------------------------------------------------------------


def test_missing_eos_by_hand() -> None:
    scores, ended = f64(2.0, 3.0, -4.0), torch.tensor([True, False, False])
    assert handle_missing_eos(scores, ended, "replace", 1.0).tolist() == [2.0, -1.0, -1.0]
    assert handle_missing_eos(scores, ended, "subtract", 1.0).tolist() == [2.0, 2.0, -5.0]
    assert handle_missing_eos(scores, ended, "none", 1.0).tolist() == [2.0, 3.0, -4.0]
    assert scores.tolist() == [2.0, 3.0, -4.0]


@pytest.mark.parametrize("how", ["replace", "subtract", "none"])
def test_a_response_that_ended_keeps_its_score(how: str) -> None:
    scores = drawn(6, seed=0)
    assert torch.equal(handle_missing_eos(scores, torch.ones(6, dtype=torch.bool), how, 3.0), scores)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_subtracting_keeps_the_order_and_replacing_forgets_it(dtype: torch.dtype) -> None:
    scores, cut = drawn(20, seed=1, dtype=dtype).sort().values, torch.zeros(20, dtype=torch.bool)
    subtracted, replaced = (handle_missing_eos(scores, cut, how, 0.5) for how in ("subtract", "replace"))
    close(subtracted, [x - exact(f64(0.5))[0] for x in exact(scores)], 4 * eps(dtype))
    assert bool((subtracted.diff() >= 0).all())
    assert set(replaced.tolist()) == {-0.5}
    assert subtracted.dtype == replaced.dtype == dtype


# --- the penalty -------------------------------------------------------------------------------------------


def test_penalty_by_hand() -> None:
    # The first token is e times as likely as under the reference and costs 0.1; the second is less likely and earns
    # 0.05.
    logprobs, ref = grid([[-1.0, -2.0], [-1.0, -1.0, -1.0]]), grid([[-2.0, -1.5], [-1.0, -2.0, -1.0]])
    penalty = non_score_reward(logprobs, ref, prefix([[1, 2], [1, 2, 3]]), 0.1)
    assert penalty.tolist() == [pytest.approx([-0.1, 0.05, 0.0]), pytest.approx([0.0, -0.1, 0.0])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_penalty_against_plain_numbers(dtype: torch.dtype) -> None:
    logprobs, ref, mask = drawn(3, 8, seed=0, dtype=dtype), drawn(3, 8, seed=1, dtype=dtype), drawn(3, 8, seed=2) > 0
    penalty = non_score_reward(logprobs, ref, mask, 0.05)
    expected = [-0.05 * float(a - b) for a, b in zip(exact(logprobs[mask]), exact(ref[mask]), strict=True)]
    close(
        penalty[mask], expected, [1.5 * eps(dtype) * abs(x) for x in expected]
    )  # beta in the dtype, the difference, the product
    assert not penalty[~mask].any()
    assert penalty.dtype == dtype


@given(rows=ragged, beta=st.floats(0, 2))
def test_penalty_grows_with_beta_and_turns_with_the_networks(rows: list[list[float]], beta: float) -> None:
    x, mask = grid(rows, junk=0.0), prefix(rows)
    once = non_score_reward(x, -x, mask, beta)
    assert torch.allclose(non_score_reward(x, -x, mask, 2 * beta), 2 * once)
    assert torch.equal(non_score_reward(-x, x, mask, beta), -once)
    assert not non_score_reward(x, x, mask, beta).any()


# --- the penalty on groups of tokens -----------------------------------------------------------------------


def test_penalty_on_groups_by_hand() -> None:
    """Groups of log-ratios (1, -0.4) and (0.2); and of (0.5), (-0.3, 0.1, 0.5), the last of them cut."""
    d, mask = grid([[1.0, -0.4, 0.2], [0.5, -0.3, 0.1, 0.5]]), prefix([[1, 2, 3], [1, 2, 3, 4]])
    groups = group_numbers(torch.tensor([[False, True, False, True], [True, False, False, False]]))

    def found(estimator: Any, credit: Any) -> list[list[float]]:
        rows: list[list[float]] = group_non_score_reward(d, d * 0, mask, groups, 0.1, estimator, credit).tolist()
        return rows

    third = -0.1 * 0.3 / 3
    assert found("k1", "shared") == [
        pytest.approx([-0.03, -0.03, -0.02, 0.0]),
        pytest.approx([-0.05, third, third, third]),
    ]
    assert found("k1", "last") == [pytest.approx([0, -0.06, -0.02, 0]), pytest.approx([-0.05, 0, 0, -0.03])]
    k3 = [-0.1 * (math.exp(-d) - 1 + d) for d in (0.6, 0.2, 0.5, 0.3)]
    assert found("k3", "last") == [pytest.approx([0, k3[0], k3[1], 0]), pytest.approx([k3[2], 0, 0, k3[3]])]
    assert found("k3", "shared")[0] == pytest.approx([k3[0] / 2, k3[0] / 2, k3[1], 0])


@given(rows=ragged, data=st.data())
def test_groups_move_the_credit_of_k1_and_not_its_sum(rows: list[list[float]], data: st.DataObject) -> None:
    x, mask = grid(rows, pad=1), prefix(rows, pad=1)
    shape = [data.draw(st.lists(st.booleans(), min_size=mask.shape[1], max_size=mask.shape[1])) for _ in rows]
    groups = group_numbers(torch.tensor(shape))
    plain = non_score_reward(x, x * 0, mask, 0.7)
    for credit in ("shared", "last"):
        moved = group_non_score_reward(x, x * 0, mask, groups, 0.7, "k1", credit)  # type: ignore[arg-type]
        torch.testing.assert_close(moved.sum(1), plain.sum(1), rtol=1e-12, atol=1e-12)
        assert not moved[~mask].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_groups_of_one_token_are_the_penalty_on_tokens(dtype: torch.dtype, estimator: Any) -> None:
    logprobs, ref, mask = (drawn(3, 8, seed=seed, dtype=dtype) for seed in (0, 1, 2))
    valid = torch.arange(8) < (mask.abs().sum(1, keepdim=True).double() % 8 + 1)
    plain = non_score_reward(logprobs, ref, valid, 0.05, estimator)
    for credit in ("shared", "last"):
        alone = group_numbers(torch.ones_like(valid))
        found = group_non_score_reward(logprobs, ref, valid, alone, 0.05, estimator, credit)  # type: ignore[arg-type]
        assert found.dtype == dtype
        assert torch.equal(found, plain)


def test_a_response_paid_for_by_its_last_token_is_a_penalty_in_the_score() -> None:
    x, mask, scores = drawn(3, 5, seed=3), prefix([[1, 2, 3, 4, 5], [1], [1, 2]]), drawn(3, seed=4)
    penalty = group_non_score_reward(x, x * 0, mask, torch.zeros(3, 5, dtype=torch.long), 0.3, "k1", "last")
    in_score = token_rewards(scores - 0.3 * torch.where(mask, x, 0.0).sum(1), torch.zeros_like(x), mask)
    torch.testing.assert_close(token_rewards(scores, penalty, mask), in_score, rtol=1e-12, atol=1e-12)


# --- the score ---------------------------------------------------------------------------------------------


def test_score_by_hand_on_the_last_valid_token() -> None:
    mask = prefix([[1, 2], [1, 2, 3], [1]])
    penalty = grid([[-0.1, 0.05], [0.0, -0.1, 0.0], [0.2]], junk=0.0)
    rewards = token_rewards(f64(5.0, 7.0, -1.0), penalty, mask)
    assert rewards.tolist() == [
        pytest.approx([-0.1, 5.05, 0.0]),
        pytest.approx([0.0, -0.1, 7.0]),
        pytest.approx([-0.8, 0.0, 0.0]),
    ]
    assert penalty[0, 1].item() == 0.05  # added to a copy


def test_an_empty_response_is_an_error() -> None:
    with pytest.raises(ValueError, match="no valid token"):
        token_rewards(f64(1.0, 1.0), torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))


def test_the_score_on_the_last_token_and_not_behind_it() -> None:
    """Score 2, values .3 .5 .6 and .9 after EOS, a KL penalty of 0.02 on EOS; at lambda 0."""
    mask, values = prefix([[1, 2, 3]], pad=1), f64(0.3, 0.5, 0.6, 0.9)[None]
    penalty = f64(0.0, 0.0, -0.02, 0.0)[None]
    ours, _ = gae(token_rewards(f64(2.0), penalty, mask), values, mask, 1.0, 0.0)
    # 0.5 - 0.3, 0.6 - 0.5, and 2 - 0.02 - 0.6 = 1.38: EOS alone has earned the score.
    assert ours[0].tolist() == pytest.approx([0.2, 0.1, 1.38, 0.0])
    # One slot later, EOS would get 0.9 - 0.6 - 0.02 = 0.28 from the critic, and padding the 2 - 0.9 = 1.1.
    slot = prefix([[1, 2, 3, 4]])
    theirs, _ = gae(token_rewards(f64(2.0), penalty, slot), values, slot, 1.0, 0.0)
    assert theirs[0].tolist() == pytest.approx([0.2, 0.1, 0.28, 1.1])


@given(rows=ragged, data=st.data())
def test_a_response_earns_its_score_and_its_penalties_and_nothing_else(
    rows: list[list[float]], data: st.DataObject
) -> None:
    scores = f64(*data.draw(st.lists(st.floats(-5, 5), min_size=len(rows), max_size=len(rows))))
    mask = prefix(rows, pad=2)
    penalty = non_score_reward(grid(rows, pad=2), torch.zeros(mask.shape, dtype=torch.float64), mask, 1.0)
    rewards = token_rewards(scores, penalty, mask)
    assert rewards.sum(1).tolist() == pytest.approx(
        [score - sum(row) for score, row in zip(scores.tolist(), rows, strict=True)]
    )
    places = torch.tensor([len(row) - 1 for row in rows])
    assert (rewards - penalty).gather(1, places[:, None])[:, 0].tolist() == pytest.approx(scores.tolist())
    assert not rewards[~mask].any()
    assert int((rewards != penalty).sum()) <= len(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rewards_have_the_dtype_of_the_penalty_whatever_the_scores_have(dtype: torch.dtype) -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    for score_dtype in DTYPES:
        rewards = token_rewards(torch.tensor([1.0, 2.0], dtype=score_dtype), torch.zeros(2, 3, dtype=dtype), mask)
        assert rewards.dtype == dtype
        assert rewards.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]


# --- a part with a floor -----------------------------------------------------------------------------------


def test_the_weighted_part_is_added_and_the_scale_kept() -> None:
    proxy, part = f64(1.0, -2.0), f64(-3.0, 4.0)
    assert with_floor(proxy, part, 0.0).tolist() == [1.0, -2.0]
    assert with_floor(proxy, part, 3.0).tolist() == [-2.0, 2.5]
    assert with_floor(proxy, proxy, 7.0).tolist() == pytest.approx(proxy.tolist()), (
        "of one and the same the weight is free"
    )
