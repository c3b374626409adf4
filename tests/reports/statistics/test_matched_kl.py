"""The curve through the ends of a method's arms on one seed, and how often comparisons with it are right."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator

from reports.statistics import drift_coverage
from reports.statistics.matched_kl import WIDEST, curve_at, enough, interpolate, refusal


@pytest.mark.parametrize("points", [2, 3, 4, 7])
def test_the_interpolation_is_that_of_scipy(points: int) -> None:
    rng = np.random.default_rng(points)
    for _ in range(50):
        kl = np.cumsum(rng.uniform(0.1, 2.0, points))
        values = rng.normal(size=points)
        wanted = PchipInterpolator(np.sqrt(kl), values)
        for at in np.append(np.linspace(kl[0], kl[-1], 20), kl):
            assert interpolate(kl, values, float(at)) == pytest.approx(float(wanted(np.sqrt(at))), abs=1e-9)


def test_it_passes_through_the_ends_and_stays_between_neighbours() -> None:
    kl, values = np.array([0.0, 1.4, 3.8, 6.7]), np.array([-0.35, 2.9, 4.4, 4.6])
    assert [interpolate(kl, values, at) for at in kl] == pytest.approx(values)
    between = [interpolate(kl, values, at) for at in np.linspace(1.4, 3.8, 40)]
    assert between == sorted(between)
    assert interpolate(kl, values, 2.4) == pytest.approx(3.7772, abs=1e-4)
    assert interpolate(kl, values, 2.4) > np.interp(np.sqrt(2.4), np.sqrt(kl), values)


@pytest.mark.parametrize(
    ("ends", "at", "reference", "why"),
    [
        ([1.0, 2.0], 1.5, True, ""),
        ([1.0, 3.0], 2.0, False, "few arms"),  # a chord lies below a concave curve
        ([2.0], 2.0, True, "few arms"),
        ([], 2.0, True, "few arms"),
        ([1.0, 1.0, 3.0], 2.0, True, "few arms"),
        ([1.0, 2.0, 3.0], 0.99, False, "below"),
        ([1.0, 2.0, 3.0], 3.01, False, "beyond"),
        ([1.0, 2.0], 1.0, True, ""),
        ([1.0, 2.0], 2.0, True, ""),
        ([1.0, WIDEST, 5 * WIDEST], 1.5, False, ""),
        ([1.0, WIDEST, 5 * WIDEST], WIDEST + 0.1, False, "far apart"),
    ],
)
def test_where_there_is_no_curve(ends: list[float], at: float, reference: bool, why: str) -> None:
    assert refusal(np.array(ends), at, reference) == why


def test_a_refused_curve_raises() -> None:
    kl, values = np.full((2, 4), 1.0), np.full((2, 4), 2.0)
    kl[1] = 2.0
    assert curve_at(kl, values, np.zeros(4), np.full(4, 2.0)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="no curve at 4: beyond"):
        curve_at(kl, values, np.zeros(4), np.full(4, 4.0))


def test_half_of_the_seeds_and_two_are_enough() -> None:
    assert [enough(*counts) for counts in ((1, 1), (1, 2), (2, 3), (2, 5), (3, 5), (5, 10))] == [
        False, False, True, False, True, True,
    ]  # fmt: skip


def test_the_table_is_linear_in_what_was_measured() -> None:
    """With little spread, every cell is the curve through its own measurements."""
    rng = np.random.default_rng(0)
    spread = 1e-4 * rng.standard_normal((4, 3, 6))
    kl = np.array([2.0, 3.8, 6.7])[:, None] + spread[0]
    values = np.array([2.9, 4.4, 4.6])[:, None] + spread[1]
    reference, own = -0.35 + spread[2, 0], 2.4 + spread[2, 1]
    table = curve_at(kl, values, reference, own)
    for prompt in range(6):
        xs, ys = np.append(0.0, kl[:, prompt]), np.append(reference[prompt], values[:, prompt])
        assert table[prompt] == pytest.approx(interpolate(xs, ys, float(own[prompt])), abs=1e-7)
    assert float(np.ptp(table)) > 1e-5


def test_scatter_of_the_kl_costs_no_win_rate() -> None:
    """Read at the mean KL, the curve of the law that peaks is 2.1 points too high at this scatter (n = 958 studies)."""
    found = drift_coverage.simulate((5, "peaks", 0.6, 3), 100)
    assert abs(found.bias) < 0.005 + 4 * found.bias_error
    assert 4 * found.bias_error < 0.012


@pytest.mark.parametrize("ratio", [1.5, WIDEST, 4.0])
def test_the_curve_cuts_off_a_maximum_between_two_ends(ratio: float) -> None:
    """Of the parabola 2 d - d² in d = sqrt(KL), whose rise to its maximum is 1, as `WIDEST` states it."""
    d = np.array([0.0, 2.0, 2.0 * ratio**0.5]) / (1 + ratio**0.5)
    assert 1 - interpolate(d**2, 2 * d - d**2, 1.0) == pytest.approx(cut_off(ratio))


def cut_off(ratio: float) -> float:
    return float(((ratio**0.5 - 1) / (ratio**0.5 + 1)) ** 2)


def bias_bound(arms: int) -> float:
    """Half a point of win rate, or of two arms around a maximum the part of its rise that the curve cuts off."""
    return 0.005 if arms > 2 else cut_off(WIDEST) * (drift_coverage.LAWS["peaks"](np.sqrt(5.74)).item() - 0.5)


def test_the_published_coverage() -> None:
    with drift_coverage.RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [
        (int(row["arms"]), row["law"], float(row["scatter"]), int(row["seeds"])) for row in rows
    ] == drift_coverage.designs()
    assert all(abs(float(row["bias"])) < bias_bound(int(row["arms"])) for row in rows)
    assert min(float(row["coverage"]) for row in rows) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("design", drift_coverage.designs())
def test_coverage_whatever_the_law(design: drift_coverage.Design) -> None:
    """400 studies have a standard error of 1.1 points of coverage at 95 %."""
    found = drift_coverage.simulate(design, 400)
    assert abs(found.bias) < bias_bound(design[0]) + 4 * found.bias_error
    assert found.coverage > 0.91
