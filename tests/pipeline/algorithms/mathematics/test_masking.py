"""Masked sums, means, variances and whitening: by hand, and against plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from naive import grid, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.masking import masked_mean, masked_var, masked_whiten


def one_row(xs: list[float]) -> tuple[Tensor, Tensor]:
    return grid([xs], pad=1), prefix([xs], pad=1)


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
    x, mask = one_row(xs)
    assert masked_whiten(x, mask)[0].tolist() == pytest.approx([*white, 0], abs=1e-6)
