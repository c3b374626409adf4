"""Masked sums, means, variances and whitening: by hand, against plain loops in each dtype, and their laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import DTYPES, close, drawn, eps, exact, grid, mean, prefix, sum_eps, variance
from torch import Tensor

from pipeline.algorithms.mathematics.masking import EPSILON, masked_mean, masked_sum, masked_var, masked_whiten
from pipeline.models.policy import response_mask

NAN = float("nan")
numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def one_row(xs: list[float]) -> tuple[Tensor, Tensor]:
    return grid([xs], pad=1), prefix([xs], pad=1)


# --- by hand -----------------------------------------------------------------------------------------------


def test_response_mask_comes_from_lengths() -> None:
    assert response_mask(torch.tensor([1, 3, 0]), 3).tolist() == [
        [True, False, False],
        [True, True, True],
        [False, False, False],
    ]


def test_sum_mean_and_variance_by_hand_and_blind_to_padding() -> None:
    # valid: 1, 2, 6. Sum 9, mean 3, squared distances 4 + 1 + 9 = 14; divided by n = 3, not by n - 1 = 2.
    x, mask = grid([[1.0, 2.0], [6.0]], pad=1), prefix([[1, 2], [6]], pad=1)
    assert masked_sum(x, mask).item() == 9.0
    assert masked_mean(x, mask).item() == pytest.approx(3.0)
    assert masked_var(x, mask).item() == pytest.approx(14 / 3)


def test_the_mean_is_over_tokens_and_not_over_rows() -> None:
    # Row means are 1 and 5; their mean would be 3. Over tokens: (1 + 1 + 1 + 5) / 4 = 2.
    assert masked_mean(grid([[1.0, 1.0, 1.0], [5.0]]), prefix([[1, 1, 1], [5]])).item() == 2.0


@pytest.mark.parametrize("function", [masked_mean, masked_var, masked_whiten])
def test_no_valid_token_is_an_error_and_no_nan(function: object) -> None:
    with pytest.raises(ValueError, match="no valid token"):
        function(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool))  # type: ignore[operator]


def test_whitening_by_hand() -> None:
    # 1 and 3: mean 2, biased variance 1. So -1 and 1; with the mean kept, 1 and 3 again.
    x, mask = one_row([1.0, 3.0])
    assert masked_whiten(x, mask)[0].tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-6)
    assert masked_whiten(x, mask, shift_mean=False)[0].tolist() == pytest.approx([1.0, 3.0, 0.0], abs=1e-6)
    # 0, 0, 3, 3: mean 1.5, variance 2.25, deviation 1.5. The mean that is kept is the old one: 1.5 - 1 and 1.5 + 1.
    x, mask = one_row([0.0, 0.0, 3.0, 3.0])
    assert masked_whiten(x, mask)[0].tolist() == pytest.approx([-1, -1, 1, 1, 0], abs=1e-6)
    assert masked_whiten(x, mask, shift_mean=False)[0].tolist() == pytest.approx([0.5, 0.5, 2.5, 2.5, 0], abs=1e-6)


def test_the_epsilon_of_whitening_is_under_the_root() -> None:
    # 0 and 2e-4: deviation 1e-4, variance 1e-8. Under the root: 1e-4 / sqrt(2e-8) = 0.7071; beside it, 1e-4 / (1e-4 +
    # 1e-8) = 0.9999.
    x, mask = one_row([0.0, 2e-4])
    assert masked_whiten(x, mask)[0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 0.0])


def test_whitening_what_does_not_vary_stays_finite() -> None:
    x, mask = one_row([2.0, 2.0])
    assert masked_whiten(x, mask)[0].tolist() == [0.0, 0.0, 0.0]
    assert masked_whiten(x, mask, shift_mean=False)[0].tolist() == [2.0, 2.0, 0.0]


# --- against plain loops, in each dtype --------------------------------------------------------------------

# A mean of n numbers: the sum and the division round once each, and each addition inside the sum once more.


def mean_bound(xs: list[float], dtype: torch.dtype) -> float:
    magnitude = sum(map(abs, xs)) / len(xs)
    return eps(dtype) * abs(sum(xs) / len(xs)) + len(xs) * sum_eps(dtype) * magnitude


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_moments_against_plain_loops(dtype: torch.dtype, seed: int) -> None:
    x, mask = drawn(4, 7, seed=seed, dtype=dtype), drawn(4, 7, seed=seed + 100) > -0.5  # holes, not only tails
    xs = exact(x[mask])
    x[~mask] = NAN
    floats = [float(value) for value in xs]
    close(masked_sum(x, mask), [sum(xs)], mean_bound(floats, dtype) * len(xs))
    close(masked_mean(x, mask), [mean(xs)], mean_bound(floats, dtype))
    # With the mean off by m, the variance is off by m^2; each difference, square, sum and division adds at most 5
    # roundings in all.
    spread, off = float(variance(xs)), mean_bound(floats, dtype)
    close(masked_var(x, mask), [variance(xs)], 1.1 * off**2 + (2.5 * eps(dtype) + len(xs) * sum_eps(dtype)) * spread)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shift_mean", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_whitening_against_plain_loops(dtype: torch.dtype, shift_mean: bool, seed: int) -> None:
    x, mask = drawn(4, 7, seed=seed, dtype=dtype), drawn(4, 7, seed=seed + 100) > -0.5
    xs = [float(value) for value in exact(x[mask])]
    x[~mask] = NAN
    white = masked_whiten(x, mask, shift_mean=shift_mean)
    middle, deviation = float(mean(xs)), math.sqrt(float(variance(xs)) + EPSILON)
    expected = [(value - middle) / deviation + (0.0 if shift_mean else middle) for value in xs]
    # Roundings of the difference, of the root (half of the variance's 5, and its own), of the product and of the sum;
    # and the mean's.
    slack = (5 * eps(dtype) + len(xs) * sum_eps(dtype), 3 * mean_bound(xs, dtype) * max(1.0, 1 / deviation))
    close(white[mask], expected, [slack[0] * (abs(value) + abs(middle)) + slack[1] for value in expected])
    assert not white[~mask].any()
    assert white.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_keep_the_dtype(dtype: torch.dtype) -> None:
    x, mask = drawn(2, 3, seed=0, dtype=dtype), torch.ones(2, 3, dtype=torch.bool)
    assert {function(x, mask).dtype for function in (masked_sum, masked_mean, masked_var)} == {dtype}


# --- laws --------------------------------------------------------------------------------------------------


@given(xs=numbers)
def test_whitened_means_nothing_and_varies_by_one(xs: list[float]) -> None:
    x, mask = one_row(xs)
    white, spread = masked_whiten(x, mask), masked_var(x, mask).item()
    # Rounding leaves about 1e-14 of the numbers' size in the mean; small deviations magnify it.
    assert masked_mean(white, mask).item() == pytest.approx(0, abs=1e-11 / math.sqrt(spread + EPSILON))
    assert masked_var(white, mask).item() == pytest.approx(spread / (spread + EPSILON), rel=1e-9, abs=1e-18)


@given(xs=numbers)
def test_rewards_keep_their_mean_and_advantages_lose_it_by_the_same_step(xs: list[float]) -> None:
    x, mask = one_row(xs)
    kept, lost = masked_whiten(x, mask, shift_mean=False), masked_whiten(x, mask)
    assert (kept - lost)[mask].tolist() == pytest.approx([masked_mean(x, mask).item()] * len(xs), rel=1e-9, abs=1e-9)


@given(xs=numbers, factor=st.floats(0.1, 10), shift=st.floats(-10, 10))
def test_scale_and_shift(xs: list[float], factor: float, shift: float) -> None:
    x, mask = one_row(xs)
    moved = factor * x + shift
    assert masked_mean(moved, mask).item() == pytest.approx(factor * masked_mean(x, mask).item() + shift, abs=1e-9)
    assert masked_var(moved, mask).item() == pytest.approx(factor**2 * masked_var(x, mask).item(), rel=1e-9, abs=1e-9)
    if masked_var(x, mask) > 1e-2:  # far above the 1e-8 under the root
        white = masked_whiten(x, mask)[mask].tolist()
        assert masked_whiten(moved, mask)[mask].tolist() == pytest.approx(white, rel=1e-3, abs=1e-6)
        assert masked_whiten(-moved, mask)[mask].tolist() == pytest.approx(
            [-value for value in white], rel=1e-3, abs=1e-6
        )


@given(xs=numbers)
def test_variance_is_the_mean_square_less_the_squared_mean(xs: list[float]) -> None:
    x, mask = one_row(xs)
    expected = masked_mean(x**2, mask) - masked_mean(x, mask) ** 2
    assert masked_var(x, mask).item() == pytest.approx(expected.item(), abs=1e-9)


@settings(max_examples=50)
@given(xs=numbers, cuts=st.lists(st.integers(0, 11), max_size=4))
def test_a_sum_is_the_sum_over_any_split(xs: list[float], cuts: list[int]) -> None:
    x, mask = torch.tensor(xs, dtype=torch.float64), torch.tensor([value > -50 for value in xs])
    places = sorted({cut for cut in cuts if cut < len(xs)})
    parts = zip(torch.tensor_split(x, places), torch.tensor_split(mask, places), strict=True)
    assert sum(masked_sum(a, b).item() for a, b in parts) == pytest.approx(masked_sum(x, mask).item(), abs=1e-10)


def test_inputs_are_left_alone() -> None:
    x, mask = grid([[1.0, 2.0]], pad=1, junk=5.0), prefix([[1, 2]], pad=1)
    for function in (masked_sum, masked_mean, masked_var, masked_whiten):
        function(x, mask)
    assert (x.tolist(), mask.tolist()) == ([[1.0, 2.0, 5.0]], [[True, True, False]])
