from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import grid, prefix

from pipeline.algorithms.mathematics.advantages import explained_variance, gae
from pipeline.algorithms.mathematics.masking import masked_mean, masked_var, masked_whiten

Rows = list[list[tuple[float, float]]]
episodes = st.lists(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6), min_size=1, max_size=4
)
fraction = st.floats(0, 1)

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
    (0.9, 0.95): [[1.968575, 0.665, 3.0], [-2.31, -2.0]],
    (0.9, 1.0): [[2.12, 0.8, 3.0], [-2.4, -2.0]],
}


@pytest.mark.parametrize(("gamma", "lam"), GOLDEN)
def test_golden_table(gamma: float, lam: float) -> None:
    # Values and rewards on the pad after EOS are somebody's garbage.
    mask = prefix(REWARDS, pad=1)
    advantages, returns = gae(grid(REWARDS, pad=1, junk=7.0), grid(VALUES, pad=1, junk=55.0), mask, gamma, lam)
    flat = [a for row in GOLDEN[gamma, lam] for a in row]
    assert advantages[mask].tolist() == pytest.approx(flat)
    assert returns[mask].tolist() == pytest.approx([a + v for a, v in zip(flat, chain(*VALUES), strict=True)])
    assert not advantages[~mask].any()
    assert not returns[~mask].any()


@given(rows=episodes, gamma=fraction)
def test_lambda_one_is_monte_carlo_and_lambda_zero_the_td_error(rows: Rows, gamma: float) -> None:
    rewards, values = (grid([[pair[place] for pair in row] for row in rows]) for place in (0, 1))
    mask = prefix(rows)
    monte_carlo = [
        sum(gamma**ahead * r for ahead, (r, _) in enumerate(row[t:])) for row in rows for t in range(len(row))
    ]
    targets = [r + (gamma * row[t + 1][1] if t + 1 < len(row) else 0) for row in rows for t, (r, _) in enumerate(row)]
    for lam, wanted in ((1.0, monte_carlo), (0.0, targets)):
        advantages, returns = gae(rewards, values, mask, gamma, lam)
        assert returns[mask].tolist() == pytest.approx(wanted, abs=1e-12)
        less = [g - v for g, (_, v) in zip(wanted, chain(*rows), strict=True)]
        assert advantages[mask].tolist() == pytest.approx(less, abs=1e-12)


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
    found = explained_variance(grid([values], pad=1), grid([[1.0, 2.0]], pad=1), prefix([values], pad=1))
    assert found == pytest.approx(expected)
    assert math.isnan(explained_variance(grid([values]), grid([[1.0, 1.0]]), prefix([values])))


def test_sum_mean_and_variance_by_hand_and_blind_to_padding() -> None:
    # valid: 1, 2, 6. Sum 9, mean 3, squared distances 4 + 1 + 9 = 14; divided by n = 3, not by n - 1 = 2.
    x, mask = grid([[1.0, 2.0], [6.0]], pad=1), prefix([[1, 2], [6]], pad=1)
    assert masked_mean(x, mask).item() == pytest.approx(3.0)
    assert masked_var(x, mask).item() == pytest.approx(14 / 3)


@pytest.mark.parametrize("function", [masked_mean, masked_var, masked_whiten])
def test_no_valid_token_is_an_error_and_no_nan(function: Any) -> None:
    with pytest.raises(ValueError, match="no valid token"):
        function(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("xs", "white"),
    [
        ([1.0, 3.0], [-1, 1]),  # mean 2, biased variance 1
        ([0.0, 0.0, 3.0, 3.0], [-1, -1, 1, 1]),
        ([0.0, 2e-4], [-math.sqrt(0.5), math.sqrt(0.5)]),  # 1e-8 inside
        ([2.0, 2.0], [0, 0]),  # what does not vary stays finite
    ],
)
def test_whitening_by_hand(xs: list[float], white: list[float]) -> None:
    assert masked_whiten(grid([xs], pad=1), prefix([xs], pad=1))[0].tolist() == pytest.approx([*white, 0], abs=1e-6)
