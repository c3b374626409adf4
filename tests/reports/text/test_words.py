"""Numbers in words."""

from __future__ import annotations

import pytest

from reports.statistics.two_level import Estimate
from reports.text.words import interval, number, signed


def estimate(value: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(value, low, high, 3, 512, "hierarchical")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.0, "0.00"), (12.345, "12.3"), (1234.5, "1234"), (-0.0412, "−0.0412"), (2e-5, "2.0e-05"), (3.2e7, "3.2e+07"),
        (None, "–"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_number(value: float | None, wanted: str) -> None:
    assert number(value) == wanted


def test_intervals_show_their_width_with_two_digits_and_differences_their_sign() -> None:
    assert interval(estimate(0.7134, 0.66, 0.761), "eval/win_rate") == "0.713 [0.660, 0.761]"
    assert number(-0.0412, "eval/win_rate") == "−0.041"
    assert interval(estimate(33.58, 31.04, 36.24)) == "33.6 [31.0, 36.2]"
    assert interval(estimate(0.00589, 0.00567, 0.0061)) == "0.00589 [0.00567, 0.00610]"
    assert interval(estimate(6.5, 6.5, 6.5)) == "6.50 [6.50, 6.50]"
    assert interval(estimate(6.5, None, None)).endswith("no interval")
    assert signed(estimate(0.125, 0.0757, 0.178), "eval/win_rate") == "+0.125 [+0.076, +0.178]"
    assert signed(estimate(-0.0001, -0.01, 0.01), "eval/win_rate") == "0.000 [−0.010, +0.010]"
