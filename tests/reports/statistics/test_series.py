"""Series: on one grid, along the drift, and their highest point."""

from __future__ import annotations

import numpy as np
import pytest

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
