"""Rewards over KL, Gao's law and the alarm, against curves whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from reports.statistics.drift import KLCurve, alarm, common_range, fit_law, isotonic, kl_curve, running_mean


def law(d: np.ndarray, a: float, b: float) -> np.ndarray:
    return d * (a - b * np.log(np.maximum(d, 1e-300)))


def test_the_isotonic_fit_is_that_of_scipy_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for trial in range(300):
        values = rng.normal(size=rng.integers(1, 60)) + rng.choice([-0.1, 0.0, 0.1]) * np.arange(1.0)
        values = np.round(values, 1) if trial % 3 == 0 else np.cumsum(values)
        wanted = isotonic_regression(values)
        levels, weights = isotonic(values)
        np.testing.assert_array_equal(levels, wanted.x[wanted.blocks[:-1]])
        np.testing.assert_array_equal(weights, np.diff(wanted.blocks))


def test_a_monotone_trajectory_is_its_own_curve() -> None:
    steps = np.arange(50) * 16.0
    kl = np.linspace(0.0, 4.0, 50)
    curve = kl_curve(steps, kl, {"gold": 3.0 * kl}, smooth=1)
    assert curve is not None
    assert curve.kl == pytest.approx(kl)
    assert curve.at("gold", 2.5) == pytest.approx(7.5)
    assert curve.weights.sum() == 50
    assert math.isnan(curve.at("gold", 4.1))


def test_updates_between_which_kl_did_not_rise_are_pooled() -> None:
    curve = kl_curve(
        np.arange(5.0), np.array([0.0, 2.0, 1.0, 1.5, 3.0]), {"gold": np.array([0.0, 1.0, 2.0, 6.0, 4.0])}, smooth=1
    )
    assert curve is not None
    assert curve.kl == pytest.approx([0.0, 1.5, 3.0])
    assert curve.values["gold"] == pytest.approx([0.0, 3.0, 4.0])
    assert list(curve.weights) == [1, 3, 1]
    assert curve.steps == pytest.approx([0.0, 2.0, 4.0])


def test_noise_in_kl_does_not_move_the_curve() -> None:
    rng = np.random.default_rng(0)
    drift = np.linspace(0.0, 6.0, 400)
    at_three = []
    for _ in range(40):
        curve = kl_curve(np.arange(400.0), drift + 0.5 * rng.normal(size=400), {"gold": drift})
        assert curve is not None
        at_three.append(curve.at("gold", 3.0))
    assert np.mean(at_three) == pytest.approx(3.0, abs=0.03)


def test_order_of_records_and_gaps_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    steps, kl, gold = np.arange(30.0), np.linspace(0, 3, 30), rng.normal(size=30)
    kl[7] = np.nan
    order = rng.permutation(30)
    first, second = kl_curve(steps, kl, {"gold": gold}), kl_curve(steps[order], kl[order], {"gold": gold[order]})
    assert first is not None
    assert second is not None
    assert first.kl == pytest.approx(second.kl)
    assert first.values["gold"] == pytest.approx(second.values["gold"])
    assert first.weights.sum() == 29


@pytest.mark.parametrize("kl", [[], [1.0], [2.0, 1.0], [0.0, 0.0, 0.0]])
def test_what_never_drifted_has_no_curve(kl: list[float]) -> None:
    assert kl_curve(np.arange(float(len(kl))), np.array(kl), {"gold": np.array(kl)}, smooth=1) is None


def test_common_range() -> None:
    def through(low: float, high: float) -> KLCurve:
        return KLCurve(np.array([low, high]), {}, np.zeros(2), np.ones(2))

    assert common_range([through(0.0, 3.0), through(0.1, 5.0)]) == (0.1, 3.0)
    assert common_range([through(0.0, 1.0), through(2.0, 5.0)]) is None
    assert common_range([]) is None


def test_running_mean_at_the_ends() -> None:
    assert running_mean(np.array([1.0, 2.0, 6.0, 3.0]), 3) == pytest.approx([1.5, 3.0, 11 / 3, 4.5])


def test_law_is_recovered_with_its_peak() -> None:
    d = np.linspace(0.0, 6.0, 40)
    found = fit_law([d**2], [law(d, 2.0, 0.8)])
    assert found is not None
    assert (found.a.value, found.b.value) == pytest.approx((2.0, 0.8))
    assert found.a.low is None
    assert found.peak_kl is not None
    top = math.exp(2.0 / 0.8 - 1)
    assert found.peak_kl.value == pytest.approx(top**2)
    assert found.peak_gain == pytest.approx(float(law(np.array([top]), 2.0, 0.8)[0]))
    assert found.peak_gain == pytest.approx(float(law(np.linspace(0.01, 60, 60_000), 2.0, 0.8).max()), rel=1e-6)
    assert not found.extrapolated
    assert found.residual == pytest.approx(0.0, abs=1e-9)
    assert found.at(np.array([0.0, 4.0])) == pytest.approx([0.0, 2 * (2.0 - 0.8 * math.log(2))])


def test_peak_beyond_the_data_is_called_an_extrapolation() -> None:
    d = np.linspace(0.0, 2.0, 40)
    found = fit_law([d**2], [law(d, 2.0, 0.8)])
    assert found is not None
    assert found.extrapolated


def test_without_a_bend_there_is_no_peak() -> None:
    d = np.linspace(0.0, 6.0, 40)
    rising = fit_law([d**2], [law(d, 1.0, -0.2)])
    assert rising is not None
    assert rising.peak_kl is None
    rng = np.random.default_rng(2)
    straight = fit_law([d**2] * 3, [law(d, 1.0, 0.15) + 1.5 * rng.normal(size=40) for _ in range(3)])
    assert straight is not None
    assert straight.b.low is not None
    assert straight.b.low < 0 < straight.b.value
    assert straight.peak_kl is None


def test_points_that_cannot_tell_a_from_b() -> None:
    assert fit_law([np.array([4.0, 4.0, 4.0])], [np.ones(3)]) is None
    assert fit_law([np.zeros(5)], [np.zeros(5)]) is None


@pytest.mark.parametrize("trials", [3, 12])
def test_law_coverage(trials: int) -> None:
    rng = np.random.default_rng(3)
    covered, told = np.zeros(3), np.zeros(3)
    peak = math.exp(2 * (2.0 / 0.8 - 1))
    for _ in range(300):
        kl = [np.sort(rng.uniform(0, 30, 40)) for _ in range(trials)]
        gain = [
            law(np.sqrt(one), 2 + 0.2 * rng.normal(), 0.8 + 0.1 * rng.normal()) + 0.4 * rng.normal(size=40)
            for one in kl
        ]
        found = fit_law(kl, gain)
        assert found is not None
        pairs = [(found.a, 2.0), (found.b, 0.8), (found.peak_kl, peak)]
        told += [one is not None for one, _ in pairs]
        covered += [
            one is not None and one.low is not None and one.high is not None and one.low < truth < one.high
            for one, truth in pairs
        ]
    assert told[2] > 250
    assert (covered / told > 0.91).all()
    assert (covered / told < 0.99).all()


def hacked(rng: np.random.Generator, n: int = 128, fall: float = 6.0) -> tuple[np.ndarray, ...]:
    """Gold rises for a third of the time, then falls; the proxy rises throughout."""
    time = np.linspace(0, 1, n)
    gold = np.where(time < 1 / 3, 6 * time, 2 - fall * (time - 1 / 3)) + 0.5 * rng.normal(size=n)
    return np.arange(n) * 16.0, 20 * time**2, gold, 2 * time + 0.1 * rng.normal(size=n)


def test_alarm_finds_where_gold_turned() -> None:
    rng = np.random.default_rng(4)
    found = [alarm(*hacked(rng)) for _ in range(60)]
    assert all(one is not None for one in found)
    turned = np.array([one.step for one in found if one is not None])
    assert np.median(turned) == pytest.approx(127 / 3 * 16, abs=64)
    assert all(one.seen_step > one.step and one.seen_kl > one.kl for one in found if one is not None)
    truth = 20 * (1 / 3) ** 2
    assert np.median([one.kl for one in found if one is not None]) == pytest.approx(truth, rel=0.2)


def test_no_alarm_when_the_proxy_falls_too() -> None:
    steps, kl, gold, proxy = hacked(np.random.default_rng(5))
    assert alarm(steps, kl, gold, proxy) is not None
    assert alarm(steps, kl, gold, proxy[::-1]) is None


@pytest.mark.parametrize("n", [30, 128])
def test_alarm_is_rarely_raised_by_noise(n: int) -> None:
    rng = np.random.default_rng(6)
    raised = 0
    for _ in range(300):
        plateau = np.minimum(np.linspace(0, 6, n), 2.0) if rng.random() < 0.5 else np.zeros(n)
        args = np.arange(n) * 16.0, np.linspace(0, 5, n), plateau + 0.5 * rng.normal(size=n), np.linspace(0, 2, n)
        raised += alarm(*args) is not None
    assert raised / 300 <= 0.05


def test_alarm_needs_records() -> None:
    few = np.arange(9.0)
    assert alarm(few, few, -few, few) is None
    assert alarm(np.arange(40.0), np.full(40, np.nan), np.arange(40.0), np.arange(40.0)) is None
