"""Generalised advantage estimation: golden tables, identities, plain loops in each dtype; explained variance."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain

import naive
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import DTYPES, close, drawn, eps, exact, grid, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.advantages import explained_variance, gae

NAN = float("nan")
Rows = list[list[tuple[float, float]]]
episodes = st.lists(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6), min_size=1, max_size=4
)
fraction = st.floats(0, 1)


def padded(rows: Rows, pad: int = 0, junk: float = NAN) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, values and mask of rows of (reward, value)."""
    rewards, values = ([[pair[place] for pair in row] for row in rows] for place in (0, 1))
    return grid(rewards, pad, junk), grid(values, pad, junk), prefix(rows, pad)


# --- golden tables -----------------------------------------------------------------------------------------

# Row 1: rewards 1, 0, 2, values 0.5, 1, -1. Row 2: rewards 0.5, -1, values 2, 1.
# gamma 1:   delta = (1 + 1 - 0.5, 0 - 1 - 1, 2 + 1) = (1.5, -2, 3)         and (0.5 + 1 - 2, -1 - 1) = (-0.5, -2).
# gamma 0.9: delta = (1 + 0.9 - 0.5, 0 - 0.9 - 1, 2 + 1) = (1.4, -1.9, 3)   and (0.5 + 0.9 - 2, -1 - 1) = (-0.6, -2).
# From the right, A = delta + gamma lambda A': for instance gamma 0.9 and lambda 0.95, so 0.855 a step:
# 3; -1.9 + 0.855 x 3 = 0.665; 1.4 + 0.855 x 0.665 = 1.968575.
REWARDS, VALUES = [[1.0, 0.0, 2.0], [0.5, -1.0]], [[0.5, 1.0, -1.0], [2.0, 1.0]]
GOLDEN = {
    # (gamma, lambda): advantages of both rows
    (1.0, 0.0): [[1.5, -2.0, 3.0], [-0.5, -2.0]],
    (1.0, 0.5): [[1.25, -0.5, 3.0], [-1.5, -2.0]],
    (1.0, 0.95): [[2.3075, 0.85, 3.0], [-2.4, -2.0]],
    (1.0, 1.0): [[2.5, 1.0, 3.0], [-2.5, -2.0]],
    (0.9, 0.0): [[1.4, -1.9, 3.0], [-0.6, -2.0]],
    (0.9, 0.5): [[1.1525, -0.55, 3.0], [-1.5, -2.0]],
    (0.9, 0.95): [[1.968575, 0.665, 3.0], [-2.31, -2.0]],
    (0.9, 1.0): [[2.12, 0.8, 3.0], [-2.4, -2.0]],
}


@pytest.mark.parametrize(("gamma", "lam"), GOLDEN)
def test_golden_table(gamma: float, lam: float) -> None:
    mask = prefix(REWARDS, pad=1)
    advantages, returns = gae(grid(REWARDS, pad=1), grid(VALUES, pad=1, junk=55.0), mask, gamma, lam)
    flat = [a for row in GOLDEN[gamma, lam] for a in row]
    assert advantages[mask].tolist() == pytest.approx(flat)
    assert returns[mask].tolist() == pytest.approx([a + v for a, v in zip(flat, chain(*VALUES), strict=True)])
    assert not advantages[~mask].any()
    assert not returns[~mask].any()


@pytest.mark.parametrize(("gamma", "lam"), GOLDEN)
def test_the_golden_table_is_the_sum_of_the_definition(gamma: float, lam: float) -> None:
    """In exact fractions, so that the table is not only ours against ours."""
    g, el = Fraction(str(gamma)), Fraction(str(lam))
    for rewards, values, expected in zip(REWARDS, VALUES, GOLDEN[gamma, lam], strict=True):
        ours = naive.gae([Fraction(r) for r in rewards], [Fraction(v) for v in values], g, el)
        assert ours == [Fraction(str(value)) for value in expected]


# --- against plain loops -----------------------------------------------------------------------------------


@given(
    rows=episodes,
    gamma=fraction,
    lam=fraction,
    pad=st.integers(0, 3),
    junk=st.sampled_from([NAN, math.inf, -math.inf, 1e30, 0.9]),
)
def test_it_is_the_sum_it_stands_for_whatever_the_padding(
    rows: Rows, gamma: float, lam: float, pad: int, junk: float
) -> None:
    rewards, values, mask = padded(rows, pad, junk)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    expected = [a for row in rows for a in naive.gae([r for r, _ in row], [v for _, v in row], gamma, lam)]
    assert advantages[mask].tolist() == pytest.approx(expected, abs=1e-12)
    assert returns[mask].tolist() == pytest.approx(
        [a + v for a, (_, v) in zip(expected, chain(*rows), strict=True)], abs=1e-12
    )
    assert not advantages[~mask].any()
    assert not returns[~mask].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.99, 0.0)])
def test_in_each_dtype(dtype: torch.dtype, gamma: float, lam: float) -> None:
    lengths = [6, 1, 4]
    rewards, values = drawn(3, 6, seed=0, dtype=dtype), drawn(3, 6, seed=1, dtype=dtype)
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    assert advantages.dtype == returns.dtype == dtype
    for row, length in enumerate(lengths):
        r, v = exact(rewards[row, :length]), exact(values[row, :length])
        expected = naive.gae(r, v, Fraction(gamma), Fraction(lam))
        # Five roundings a token (two products, three sums), each of a number no larger than the largest in sight; half
        # an eps each.
        largest = 1 + max(abs(float(x)) for x in [*r, *v, *expected]) * 2
        close(advantages[row, :length], expected, 2.5 * length * eps(dtype) * largest)
        close(
            returns[row, :length],
            [a + x for a, x in zip(expected, v, strict=True)],
            3.0 * length * eps(dtype) * largest,
        )


# --- identities --------------------------------------------------------------------------------------------


@given(rows=episodes, gamma=fraction)
def test_lambda_one_is_monte_carlo_less_the_value(rows: Rows, gamma: float) -> None:
    rewards, values, mask = padded(rows)
    advantages, returns = gae(rewards, values, mask, gamma, 1.0)
    monte_carlo = [
        sum(gamma**ahead * r for ahead, (r, _) in enumerate(row[t:])) for row in rows for t in range(len(row))
    ]
    assert returns[mask].tolist() == pytest.approx(monte_carlo, abs=1e-12)
    assert advantages[mask].tolist() == pytest.approx(
        [g - v for g, (_, v) in zip(monte_carlo, chain(*rows), strict=True)], abs=1e-12
    )


@given(rows=episodes, gamma=fraction)
def test_lambda_zero_is_the_td_error(rows: Rows, gamma: float) -> None:
    rewards, values, mask = padded(rows)
    advantages, returns = gae(rewards, values, mask, gamma, 0.0)
    targets = [r + (gamma * row[t + 1][1] if t + 1 < len(row) else 0) for row in rows for t, (r, _) in enumerate(row)]
    assert returns[mask].tolist() == pytest.approx(targets, abs=1e-12)
    assert advantages[mask].tolist() == pytest.approx(
        [g - v for g, (_, v) in zip(targets, chain(*rows), strict=True)], abs=1e-12
    )


@given(rows=episodes, gamma=fraction, lam=fraction)
def test_a_critic_that_is_right_leaves_no_advantage(rows: Rows, gamma: float, lam: float) -> None:
    knowing = [
        [(r, sum(gamma**ahead * later for ahead, (later, _) in enumerate(row[t:]))) for t, (r, _) in enumerate(row)]
        for row in rows
    ]
    rewards, values, mask = padded(knowing)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    assert advantages[mask].tolist() == pytest.approx([0.0] * int(mask.sum()), abs=1e-12)
    assert returns[mask].tolist() == pytest.approx(values[mask].tolist(), abs=1e-12)


@given(rows=episodes, gamma=fraction, lam=fraction, factor=st.floats(-3, 3))
def test_it_is_linear_in_rewards_and_values_together(rows: Rows, gamma: float, lam: float, factor: float) -> None:
    rewards, values, mask = padded(rows, junk=0.0)
    once, _ = gae(rewards, values, mask, gamma, lam)
    scaled, _ = gae(factor * rewards, factor * values, mask, gamma, lam)
    both, _ = gae(rewards + values, values - rewards, mask, gamma, lam)
    parts = gae(rewards, -rewards, mask, gamma, lam)[0] + gae(values, values, mask, gamma, lam)[0]
    assert torch.allclose(scaled, factor * once, atol=1e-11)
    assert torch.allclose(both, parts, atol=1e-11)


@given(rows=episodes, lam=fraction)
def test_nothing_before_a_token_and_nobody_else_matters_to_it(rows: Rows, lam: float) -> None:
    """The advantage of token t looks forward from t, in its own response."""
    rewards, values, mask = padded(rows)
    advantages, _ = gae(rewards, values, mask, 0.9, lam)
    for index, row in enumerate(rows):
        for t in range(len(row)):
            alone, _ = gae(*padded([row[t:]]), 0.9, lam)
            assert alone[0, 0].item() == pytest.approx(advantages[index, t].item(), abs=1e-12)


def test_the_episode_ends_where_the_mask_does() -> None:
    # Value 0.9 and reward 7 on the pad after EOS are somebody's garbage: A = 2 - 0.6 at EOS, for every lambda.
    rewards, values = torch.tensor([[0.0, 2.0, 7.0]]), torch.tensor([[0.5, 0.6, 0.9]])
    for lam in (0.0, 0.95, 1.0):
        assert gae(rewards, values, prefix([[1, 2]], pad=1), 1.0, lam)[0][0, 1].item() == pytest.approx(1.4)


def test_inputs_are_left_alone() -> None:
    rewards, values, mask = padded([[(1.0, 2.0)]], pad=1, junk=3.0)
    gae(rewards, values, mask, 1.0, 1.0)
    assert (rewards.tolist(), values.tolist(), mask.tolist()) == ([[1.0, 3.0]], [[2.0, 3.0]], [[True, False]])


# --- explained variance ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0], 1.0),
        ([1.5, 1.5], 0.0),  # the mean explains nothing
        ([11.0, 12.0], 1.0),  # an offset is forgiven: the variance of R - V, not its square
        ([2.0, 1.0], -3.0),  # R - V = -1, 1: variance 1, and that of R is 1/4
        ([1.25, 1.75], 0.75),  # half of the spread: R - V = -1/4, 1/4, so 1 - (1/16) / (1/4)
    ],
)
def test_explained_variance_by_hand(values: list[float], expected: float) -> None:
    assert explained_variance(
        grid([values], pad=1), grid([[1.0, 2.0]], pad=1), prefix([values], pad=1)
    ) == pytest.approx(expected)


def test_returns_that_do_not_vary_have_no_explained_variance() -> None:
    assert math.isnan(explained_variance(grid([[0.0, 1.0]]), grid([[1.0, 1.0]]), prefix([[1, 2]])))


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=5), min_size=2, max_size=4
    )
)
def test_explained_variance_against_plain_loops(rows: list[list[tuple[int, int]]]) -> None:
    pairs = [(Fraction(v), Fraction(r)) for row in rows for v, r in row]
    values, returns, mask = padded([[(float(v), float(r)) for v, r in row] for row in rows], pad=2)
    ours, spread = explained_variance(values, returns, mask), naive.variance([r for _, r in pairs])
    if spread == 0:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(float(1 - naive.variance([r - v for v, r in pairs]) / spread))
        assert ours <= 1
