from __future__ import annotations

import numpy as np
import pytest

from reports.statistics import alarm
from reports.statistics.alarm import BLOCKS, LEAST, Updates, alarms, block_means, critical_fall
from reports.statistics.matched_kl import WIDEST, curve_at, enough, interpolate, refusal
from reports.statistics.series import (
    DriftPath,
    Peak,
    align,
    drift_path,
    grid_of,
    mean_path,
    peak,
    running_mean,
    window_of,
)


def test_different_steps_meet_by_interpolation_within_their_range() -> None:
    first, second = np.array([0.0, 16.0, 32.0]), np.array([0.0, 12.0, 20.0])
    found = align([first, second], [first * 2, second * 2], grid_of([first, second]))
    assert found.grid.tolist() == [0, 12, 16, 20, 32]
    assert found.values[0].tolist() == [0, 24, 32, 40, 64]
    assert found.values[1, :4].tolist() == [0, 24, 32, 40]
    assert np.isnan(found.values[1, 4])
    assert (found.whole.tolist(), found.last) == ([True, True, True, True, False], (4, 3))
    steps, values = np.array([30.0, 0.0, 10.0, 20.0]), np.array([3.0, 0.0, np.nan, 2.0])
    assert align([steps], [values], np.array([0.0, 10.0, 20.0, 30.0])).values[0].tolist() == [0, 1, 2, 3]
    none = align([np.zeros(0)], [np.zeros(0)], np.array([0.0, 1.0]))
    assert (none.last, grid_of([]).size) == ((-1,), 0)


def test_many_records_are_averaged_by_cells_of_whole_updates() -> None:
    steps = np.arange(1.0, 1025.0)
    grid = grid_of([steps], points=64, multiple=16)
    assert len(grid) <= 65
    assert (np.diff(grid) % 16 == 0).all()
    assert align([steps], [np.where(steps % 16 == 3, 16.0, 0.0)], grid).values[0] == pytest.approx(1.0)


def test_a_path_follows_a_kl_that_overshoots_and_falls_back_whatever_the_order_of_records() -> None:
    kl = 18 * np.exp(-(((np.linspace(0, 1, 400) - 0.4) / 0.2) ** 2))
    order = np.random.default_rng(1).permutation(401)
    steps, kls = np.arange(401.0), np.append(kl, np.nan)
    path = drift_path(steps[order], kls[order], {"gold": -kls[order]})
    assert path.steps.tolist() == list(range(400))
    assert path.kl.max() == pytest.approx(18.0, rel=0.03)
    assert path.values["gold"] == pytest.approx(-path.kl)
    assert drift_path(np.zeros(1), np.ones(1), {}) is None


def test_the_mean_path_is_over_equal_steps_as_long_as_all_run() -> None:
    def path(last: int, factor: float) -> DriftPath:
        steps = np.arange(0.0, last + 1, 10)
        return DriftPath(steps, factor * steps, {"gold": -factor * steps})

    mean = mean_path([path(100, 1.0), path(60, 3.0)])
    assert mean.steps.tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert mean.kl == pytest.approx(2 * mean.steps)
    assert mean.values["gold"] == pytest.approx(-2 * mean.steps)
    assert mean_path([]) is mean_path([path(100, 1.0), DriftPath(np.array([200.0, 300.0]), np.zeros(2), {})]) is None
    assert running_mean(np.array([1.0, 2.0, 6.0, 3.0]), 3) == pytest.approx([1.5, 3.0, 11 / 3, 4.5])
    assert [window_of(records) for records in (20, 128, 200)] == [5, 13, 21]


def test_the_peak_of_three_blocks_by_hand() -> None:
    kl = np.repeat([1.0, 4.0, 9.0], 4)
    values = np.array([0.0, 1.0, 0.0, 1.0, 5.0, 3.0, 5.0, 3.0, 4.0, 2.0, 4.0, 2.0])
    # Both halves choose the second block; the halves measure 3 and 5 there, and 2 and 4 at the end.
    assert peak(np.arange(12.0)[::-1], kl[::-1], values[::-1]) == Peak(2.0, 4.0, 1.0, 5.5)
    values = np.array([9.0, 0.0, 9.0, 0.0, 1.0, 4.0, 1.0, 4.0, 2.0, 2.0, 2.0, 2.0])
    # The even records choose the first block, where the odd ones are 0; these choose the second, where the even are 1.
    found = peak(np.arange(12.0), kl, values)
    assert (found.root_kl, found.value, found.fall) == (1.5, 0.5, -1.5)
    assert peak(np.arange(11.0), kl[:11], values[:11]) is None


def test_noise_does_not_raise_the_peak_of_a_flat_curve() -> None:
    """The maximum of sixteen noisy blocks would lie 0.6 above 0 here, and so would its fall."""
    rng, steps, kl = np.random.default_rng(0), np.arange(128) * 16.0, np.linspace(0, 8, 128) ** 2
    found = [peak(steps, kl, rng.normal(size=128)) for _ in range(1000)]
    for key in ("value", "fall"):
        numbers = np.array([getattr(one, key) for one in found])
        assert abs(numbers.mean()) < 4 * numbers.std() / np.sqrt(1000)


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


N = 128
UP = np.linspace(0.0, 2.0, N)


def correlated(rng: np.random.Generator, shape: tuple[int, ...], correlation: float) -> np.ndarray:
    """Gaussian noise of variance 1 with this correlation from record to record; (..., N)."""
    noise = rng.standard_normal(shape)
    for at in range(1, shape[-1]):
        noise[..., at] = correlation * noise[..., at - 1] + np.sqrt(1 - correlation**2) * noise[..., at]
    return noise


def wandering(rng: np.random.Generator, shape: tuple[int, ...], share: float, correlation: float) -> np.ndarray:
    """White noise on a slow wander that has this share of the variance."""
    return np.sqrt(1 - share) * rng.standard_normal(shape) + np.sqrt(share) * correlated(rng, shape, correlation)


def raised(gold: np.ndarray) -> np.ndarray:
    """Return whether each trial of studies x arms x seeds x records raises an alarm; KL and proxy rise throughout."""
    up, steps = np.linspace(0.0, 2.0, gold.shape[-1]), np.arange(gold.shape[-1]) * 16.0
    studies = [[[Updates(steps, up, one, up) for one in seeds] for seeds in arms] for arms in gold]
    return np.array([[[one is not None for one in arm] for arm in alarms(study)] for study in studies])


def bend(fall: float) -> np.ndarray:
    """Gold rises by 2 points in a third of the training, then falls steadily by `fall`."""
    time = np.linspace(0, 1, N)
    return np.where(time < 1 / 3, 6 * time, 2 - fall * (time - 1 / 3) * 1.5)


def hacked(rng: np.random.Generator) -> Updates:
    """A trial whose gold turns down at a third of the training."""
    gold = bend(4.0) + 0.5 * rng.normal(size=N)
    return Updates(np.arange(N) * 16.0, 20 * np.linspace(0, 1, N) ** 2, gold, UP + 0.1 * rng.normal(size=N))


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_few_studies_without_a_trend_raise_any_alarm(correlation: float) -> None:
    gold = correlated(np.random.default_rng(1), (500, 5, 3, N), correlation)
    assert raised(gold).any((1, 2)).mean() <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "seeds", "records"), [(5, 3, N), (1, 1, N), (5, 3, 400)])
def test_the_false_alarms_that_are_published(arms: int, seeds: int, records: int) -> None:
    """The rate is at most 5 % at every correlation up to 0.6 and with a slow wander; about 5 % at the worst of them."""
    shape = (max(500, 10_000 // (arms * seeds)), arms, seeds, records)
    error = np.sqrt(0.05 * 0.95 / shape[0])
    noises = [correlated(np.random.default_rng(3), shape, own) for own in (0.0, 0.2, 0.4, 0.6)]
    noises.append(wandering(np.random.default_rng(3), shape, 0.3, 0.85))
    worst = max(raised(noise).any((1, 2)).mean() for noise in noises)
    assert 0.05 - 3 * error <= worst <= 0.05 + 2.5 * error


@pytest.mark.parametrize(("fall", "found"), [(1.5, 0.57), (3.0, 1.0)])
def test_the_power_that_is_published(fall: float, found: float) -> None:
    gold = 0.45 * correlated(np.random.default_rng(4), (300, 5, 3, N), 0.4)
    gold[:, 0] += bend(fall)
    assert raised(gold)[:, 0].mean() == pytest.approx(found, abs=0.05)


def test_it_stands_where_gold_turned() -> None:
    rng = np.random.default_rng(5)
    turned = [one for _ in range(60) if (one := alarms([[hacked(rng)]])[0][0]) is not None]
    assert len(turned) >= 58
    assert np.median([one.step for one in turned]) == pytest.approx(127 / 3 * 16, abs=80)
    assert np.median([one.kl for one in turned]) == pytest.approx(20 / 9, rel=0.25)


def test_its_kl_is_the_one_where_the_policy_stood_though_kl_falls_back() -> None:
    """KL overshoots to 18 nats and returns to 9: a monotone trend of KL would never exceed 13."""
    time = np.linspace(0, 1, N)
    kl = np.where(time < 0.4, 18 * time / 0.4, np.maximum(9.0, 18 - 45 * (time - 0.4)))
    gold = np.where(time < 0.4, 5 * time, 2 - 8 * (time - 0.4))
    (found,) = alarms([[Updates(time * 2048, kl, gold, time)]])[0]
    assert found.kl == pytest.approx(17.7, abs=0.4)
    assert alarms([[Updates(time * 2048, kl, gold, time[::-1])]])[0] == [None], "the proxy falls too"


def test_records_may_come_in_any_order_and_with_gaps_and_few_raise_none() -> None:
    trial = hacked(np.random.default_rng(7))
    order = np.random.default_rng(8).permutation(N)
    gaps = Updates(*(column[order] for column in vars(trial).values()))
    gaps.gold[::40] = np.nan
    (found,), (wanted,) = alarms([[gaps]])[0], alarms([[trial]])[0]
    assert found.step == pytest.approx(wanted.step, abs=160)
    few = np.arange(LEAST - 1.0)
    short = Updates(few, few, -few, few)
    assert alarms([[short, trial], []]) == [[None, wanted], []]


def test_block_means_their_simulated_covariance_and_the_limit() -> None:
    assert block_means(np.arange(20.0)) == pytest.approx(np.arange(BLOCKS) * 2 + 0.5)
    assert block_means(np.arange(7.0), 2) == pytest.approx([1.5, 5.0])
    noise = wandering(np.random.default_rng(10), (4000, 60), 0.3, 0.85)
    root = alarm._root(60, (0.3, 0.85))
    np.testing.assert_allclose(root @ root.T, np.cov(block_means(noise).T), atol=0.025)
    limits = [critical_fall(((N,) * 3,) * arms) for arms in (1, 5, 20)]
    assert limits == sorted(limits), "more trials take a larger fall"
    assert limits[1] == pytest.approx(6.3, abs=0.3)
