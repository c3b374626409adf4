"""The curve through the ends of a method's arms on one seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator

from reports.statistics.matched_kl import WIDEST, curve_at, enough, interpolate, refusal


@pytest.mark.parametrize("points", [2, 3, 7])
def test_the_interpolation_is_that_of_scipy(points: int) -> None:
    rng = np.random.default_rng(points)
    for _ in range(50):
        kl = np.cumsum(rng.uniform(0.1, 2.0, points))
        values = rng.normal(size=points)
        wanted = PchipInterpolator(np.sqrt(kl), values)
        for at in np.append(np.linspace(kl[0], kl[-1], 20), kl):
            assert interpolate(kl, values, float(at)) == pytest.approx(float(wanted(np.sqrt(at))), abs=1e-9)


@pytest.mark.parametrize(
    ("ends", "at", "reference", "why"),
    [
        ([1.0, 2.0], 1.5, True, ""),
        ([1.0, 3.0], 2.0, False, "few arms"),  # a chord lies below a concave curve
        ([2.0], 2.0, True, "few arms"),
        ([1.0, 1.0, 3.0], 2.0, True, "few arms"),
        ([1.0, 2.0, 3.0], 0.99, False, "below"),
        ([1.0, 2.0, 3.0], 3.01, False, "beyond"),
        ([1.0, 2.0], 2.0, True, ""),
        ([1.0, WIDEST, 5 * WIDEST], 1.5, False, ""),
        ([1.0, WIDEST, 5 * WIDEST], WIDEST + 0.1, False, "far apart"),
    ],
)
def test_where_there_is_no_curve(ends: list[float], at: float, reference: bool, why: str) -> None:
    assert refusal(np.array(ends), at, reference) == why


def test_half_of_the_seeds_and_two_are_enough() -> None:
    assert [enough(*counts) for counts in ((1, 1), (1, 2), (2, 3), (2, 5), (3, 5), (5, 10))] == [
        False, False, True, False, True, True,
    ]  # fmt: skip


def test_the_table_is_linear_in_what_was_measured() -> None:
    """Every cell, where the spread is small, is the curve through its own measurements."""
    spread = 1e-4 * np.random.default_rng(0).standard_normal((4, 3, 6))
    kl = np.array([2.0, 3.8, 6.7])[:, None] + spread[0]
    values = np.array([2.9, 4.4, 4.6])[:, None] + spread[1]
    reference, own = -0.35 + spread[2, 0], 2.4 + spread[2, 1]
    table = curve_at(kl, values, reference, own)
    for prompt in range(6):
        xs, ys = np.append(0.0, kl[:, prompt]), np.append(reference[prompt], values[:, prompt])
        assert table[prompt] == pytest.approx(interpolate(xs, ys, float(own[prompt])), abs=1e-7)
    assert float(np.ptp(table)) > 1e-5
    with pytest.raises(ValueError, match="no curve at 9: beyond"):
        curve_at(kl, values, reference, np.full(6, 9.0))


@pytest.mark.parametrize("ratio", [1.5, 4.0])
def test_the_curve_cuts_off_a_maximum_between_two_ends(ratio: float) -> None:
    """The parabola 2 d - d² in d = sqrt(KL), whose rise to its maximum is 1, as `WIDEST` states it."""
    d = np.array([0.0, 2.0, 2.0 * ratio**0.5]) / (1 + ratio**0.5)
    cut_off = ((ratio**0.5 - 1) / (ratio**0.5 + 1)) ** 2
    assert 1 - interpolate(d**2, 2 * d - d**2, 1.0) == pytest.approx(cut_off)
