"""The curve through the ends of a method's arms: its shape, and that what is compared with it is judged rightly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator

from reports.statistics import two_level
from reports.statistics.matched_kl import EndCurve, interpolate

Law = Callable[[np.ndarray], np.ndarray]
REFERENCE = -0.35
LAWS: dict[str, Law] = {
    "parabola": lambda d: REFERENCE + d * (3.2 - 0.45 * d),
    "saturating": lambda d: REFERENCE + 5.6 * (1 - np.exp(-0.9 * d)),
    "Gao": lambda d: REFERENCE + d * (3.0 - 0.95 * np.log(np.maximum(d, 1e-9))),
}
FRONTIERS = {"three betas": ((1.18, 1.96, 2.59), 1.55), "two betas": ((1.18, 1.96), 1.5)}
"""Distances sqrt(KL) at which the arms of the baseline's method and the compared arm end."""


def simulated(
    rng: np.random.Generator, law: Law, ends: tuple[float, ...], at: float, gain: float, seeds: int, prompts: int = 128
) -> tuple[np.ndarray, EndCurve, np.ndarray]:
    """Scores (S, P) of an arm that lies `gain` above a frontier, and the curve through the arms of the frontier.

    Seeds move an arm along the frontier (KL by 6 %) and off it (0.12 points), half of the former alike in all arms of
    a seed; prompts differ, with a part of its own in every arm, and so does every answer.
    """
    places = np.append(ends, at)
    arms = len(places)
    moved = np.sqrt(0.5) * (rng.standard_normal(seeds) + rng.standard_normal((arms, seeds)))
    d = places[:, None] * (1 + 0.03 * moved)
    gold = law(d) + 0.12 * rng.standard_normal((arms, seeds))
    gold[-1] += gain
    prompt = 1.5 * rng.standard_normal(prompts)
    scores = gold[:, :, None] + prompt + 0.5 * rng.standard_normal((arms, 1, prompts))
    scores += 1.5 * rng.standard_normal((arms, seeds, prompts))
    kl = d[:, :, None] ** 2 * rng.gamma(4, 0.25, (arms, seeds, prompts))
    reference = REFERENCE + prompt + 0.5 * rng.standard_normal(prompts)
    curve = EndCurve(kl[:-1], scores[:-1], np.broadcast_to(reference, (seeds, prompts)))
    return scores[-1], curve, kl[-1]


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


def test_nothing_is_extrapolated_and_two_points_are_no_curve() -> None:
    kl, values = np.full((2, 3, 4), 1.0), np.full((2, 3, 4), 2.0)
    kl[1], values[1] = 4.0, 3.0
    with pytest.raises(ValueError, match="no curve at 2: 2 arms"):
        EndCurve(kl, values).at(np.array(2.0))
    curve = EndCurve(kl, values, np.zeros((3, 4)))
    assert curve.range == (1.0, 4.0)
    assert curve.at(np.array(4.0)) == pytest.approx(3.0)
    for at in (0.9, 4.1):
        with pytest.raises(ValueError, match="no curve at"):
            curve.at(np.array(at))


def test_the_ends_of_the_range_are_points_of_the_curve_however_their_means_round() -> None:
    """With many prompts a mean depends on the order in which it is summed."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        kl, values = np.sort(rng.gamma(2.0, 2.0, (4, 5, 512)), axis=0), rng.normal(size=(4, 5, 512))
        curve = EndCurve(kl, values)
        for end, table in zip(curve.range, (values[0], values[-1]), strict=True):
            assert curve.at(np.array(end)).mean() == pytest.approx(table.mean())


def test_the_table_is_linear_in_what_was_measured() -> None:
    """With little spread, every cell is the curve through its own measurements."""
    rng = np.random.default_rng(0)
    spread = 1e-4 * rng.standard_normal((3, 3, 4, 1))
    kl = np.array([1.4, 3.8, 6.7])[:, None, None] + spread[0]
    values = np.array([2.9, 4.4, 4.6])[:, None, None] + spread[1]
    reference, at = -0.35 + spread[2, 0], 2.4 + spread[2, 1]
    table = EndCurve(kl, values, reference).at(at)
    for seed in range(4):
        own = np.append(0.0, kl[:, seed, 0]), np.append(reference[seed, 0], values[:, seed, 0])
        assert table[seed, 0] == pytest.approx(interpolate(*own, float(at[seed, 0])), abs=1e-7)
    assert float(np.ptp(table)) > 1e-5


def judged(name: str, frontier: str, gain: float, seeds: int, studies: int) -> tuple[float, float, float]:
    """Bias, coverage of the 95 % interval, and share of studies that call the arm above or below the frontier."""
    rng = np.random.default_rng(7)
    ends, at = FRONTIERS[frontier]
    errors, covered, called = [], [], []
    for _ in range(studies):
        scores, curve, kl = simulated(rng, LAWS[name], ends, at, gain, seeds)
        found = two_level.mean(scores - curve.at(kl))
        assert found.low is not None
        assert found.high is not None
        p = two_level.two_level_p(found)
        errors.append(found.value - gain)
        covered.append(found.low <= gain <= found.high)
        called.append(two_level.verdict(found, p, maximize=True) in ("better", "worse"))
    return float(np.mean(errors)), float(np.mean(covered)), float(np.mean(called))


def test_an_arm_on_the_frontier_is_rarely_called_off_it_and_one_above_it_is() -> None:
    bias, covered, called = judged("parabola", "three betas", 0.0, 5, 150)
    assert abs(bias) < 0.05
    assert covered >= 0.93
    assert called <= 0.07
    assert judged("parabola", "three betas", 0.8, 5, 60)[2] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LAWS))
@pytest.mark.parametrize("frontier", list(FRONTIERS))
@pytest.mark.parametrize("seeds", [3, 5])
def test_coverage_whatever_the_law(name: str, frontier: str, seeds: int) -> None:
    bias, covered, called = judged(name, frontier, 0.0, seeds, 400)
    assert abs(bias) < 0.06
    assert covered >= 0.93
    assert called <= 0.07
