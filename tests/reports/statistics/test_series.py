"""Series on one grid: what is averaged, what is interpolated, and what is left open."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics.series import align, grid_of


def test_equal_steps_stay_as_they_are() -> None:
    steps = np.array([0.0, 16.0, 32.0])
    found = align([steps, steps], [np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])], grid_of([steps, steps]))
    assert found.grid.tolist() == [0, 16, 32]
    assert found.values.tolist() == [[1, 2, 3], [3, 2, 1]]
    assert found.whole.all()


def test_different_steps_meet_by_interpolation_within_their_range() -> None:
    first, second = np.array([0.0, 16.0, 32.0]), np.array([0.0, 12.0, 20.0])
    found = align([first, second], [first * 2, second * 2], grid_of([first, second]))
    assert found.grid.tolist() == [0, 12, 16, 20, 32]
    assert found.values[0].tolist() == [0, 24, 32, 40, 64]
    assert found.values[1, :4].tolist() == [0, 24, 32, 40]
    assert np.isnan(found.values[1, 4])
    assert found.whole.tolist() == [True, True, True, True, False]
    assert found.count.tolist() == [2, 2, 2, 2, 1]
    assert found.last == (4, 3)


def test_many_records_are_averaged_by_cell_not_sampled() -> None:
    steps = np.arange(1.0, 1025.0)
    grid = grid_of([steps], points=64, multiple=16)
    assert len(grid) <= 65
    assert (np.diff(grid) % 16 == 0).all()
    rare = np.where(steps % 16 == 3, 16.0, 0.0)
    found = align([steps], [rare], grid)
    assert found.values[0] == pytest.approx(1.0)


def test_the_last_records_are_in_a_cell() -> None:
    steps = np.arange(0.0, 1000.0)
    found = align([steps], [steps], grid_of([steps], points=100))
    assert np.isfinite(found.values).all()
    assert found.values[0, -1] == pytest.approx(steps[-10:].mean(), abs=1.0)


def test_gaps_and_order() -> None:
    steps, values = np.array([30.0, 0.0, 10.0, 20.0]), np.array([3.0, 0.0, np.nan, 2.0])
    found = align([steps], [values], np.array([0.0, 10.0, 20.0, 30.0]))
    assert found.values[0].tolist() == [0, 1, 2, 3]


def test_nothing_recorded() -> None:
    found = align([np.zeros(0), np.array([1.0])], [np.zeros(0), np.array([5.0])], np.array([0.0, 1.0, 2.0]))
    assert np.isnan(found.values[0]).all()
    assert found.last == (-1, 1)
    assert found.values[1, 1] == 5.0
    assert grid_of([]).size == 0
    assert align([], [], np.zeros(0)).values.shape == (0, 0)
