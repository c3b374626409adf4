"""KL and rewards along a training, against paths whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics.drift import DriftPath, drift_path, mean_path, running_mean, window_of


def test_a_path_follows_a_kl_that_overshoots_and_falls_back() -> None:
    time = np.linspace(0, 1, 400)
    kl = 18 * np.exp(-(((time - 0.4) / 0.2) ** 2))
    path = drift_path(np.arange(400.0), kl, {"gold": -kl})
    assert path is not None
    assert path.kl.max() == pytest.approx(18.0, rel=0.03)
    assert path.kl[-1] == pytest.approx(kl[-1], abs=0.1)
    assert path.values["gold"] == pytest.approx(-path.kl)


def test_order_of_records_and_gaps_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    steps, kl, gold = np.arange(30.0), np.linspace(0, 3, 30), rng.normal(size=30)
    kl[7] = np.nan
    order = rng.permutation(30)
    first, second = drift_path(steps, kl, {"gold": gold}), drift_path(steps[order], kl[order], {"gold": gold[order]})
    assert first is not None
    assert second is not None
    assert first.steps == pytest.approx(np.delete(steps, 7))
    assert first.kl == pytest.approx(second.kl)
    assert first.values["gold"] == pytest.approx(second.values["gold"])


@pytest.mark.parametrize("kl", [[], [1.0], [np.nan, 1.0]])
def test_a_single_record_is_no_path(kl: list[float]) -> None:
    assert drift_path(np.arange(float(len(kl))), np.array(kl), {"gold": np.array(kl)}) is None


def test_the_mean_is_over_equal_steps_as_long_as_all_run() -> None:
    def path(last: int, factor: float) -> DriftPath:
        steps = np.arange(0.0, last + 1, 10)
        return DriftPath(steps, factor * steps, {"gold": -factor * steps})

    mean = mean_path([path(100, 1.0), path(60, 3.0)])
    assert mean is not None
    assert mean.steps.tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert mean.kl == pytest.approx(2 * mean.steps)
    assert mean.values["gold"] == pytest.approx(-2 * mean.steps)
    assert mean_path([]) is None
    assert mean_path([path(100, 1.0), DriftPath(np.array([200.0, 300.0]), np.zeros(2), {})]) is None


def test_running_mean_at_the_ends() -> None:
    assert running_mean(np.array([1.0, 2.0, 6.0, 3.0]), 3) == pytest.approx([1.5, 3.0, 11 / 3, 4.5])
    assert [window_of(records) for records in (20, 128, 200)] == [5, 13, 21]
