"""The alarm of over-optimisation: rarely raised by noise, whatever its correlation, and placed where gold turned."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics import alarm
from reports.statistics.alarm import BLOCKS, LEAST, Updates, alarms, block_means, critical_fall

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
