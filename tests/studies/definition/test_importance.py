"""Importance is found where it is, not where it is not, and not stated from too few trials."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.definition.importance import adjusted_shares, importances, needed, ranks, tail_probabilities
from studies.definition.search import Tried
from studies.definition.space import Dimension, Objective

AIM = Objective(metric="eval/win_rate")
HALF = {"line": lambda u: (u - 0.5) * np.sqrt(12), "parabola": lambda u: (1 / 12 - (u - 0.5) ** 2) * np.sqrt(180)}
"""Of variance 1 where u is uniform."""


def space(knobs: int) -> dict[str, Dimension]:
    return {f"knob{at}": Dimension(low=0.0, high=1.0) for at in range(knobs)}


def tried(points: np.ndarray, values: np.ndarray) -> list[Tried]:
    return [
        Tried(at, f"search-{at:03d}", {f"knob{k}": float(x) for k, x in enumerate(point)}, "complete",
              {AIM.metric: float(value)}, True, 64)
        for at, (point, value) in enumerate(zip(points, values, strict=True))
    ]  # fmt: skip


def searched(rng: np.random.Generator, n: int, knobs: int, shape: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Trials at random of which the first knob explains half of the variance, or none any."""
    points, noise = rng.random((n, knobs)), rng.standard_normal(n)
    return points, noise if shape is None else np.sqrt(0.5) * (HALF[shape](points[:, 0]) + noise)


def smallest(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Bonferroni's p-values from the F test, which the permutations reproduce; a thousand times faster."""
    y = ranks(values) - ranks(values).mean()
    tails = tail_probabilities(list(points.T), [False] * points.shape[1], (y / np.sqrt(y @ y))[:, None])[:, 0]
    return np.asarray(np.minimum(1, tails * points.shape[1]))


@pytest.mark.parametrize(("knobs", "trials"), [(2, 24), (4, 30), (6, 36)])
@pytest.mark.parametrize("shape", [*HALF])
def test_the_trials_that_are_needed_find_a_knob_of_half_the_variance(knobs: int, trials: int, shape: str) -> None:
    assert needed(space(knobs)) == trials
    rng = np.random.default_rng(knobs)
    found = np.array([smallest(*searched(rng, trials, knobs, shape))[0] <= 0.05 for _ in range(200)])
    assert found.mean() >= 0.8 - 2 * np.sqrt(0.8 * 0.2 / 200)
    few = np.array([smallest(*searched(rng, 18, knobs, shape))[0] <= 0.05 for _ in range(200)])
    assert few.mean() < 0.8


def test_where_nothing_matters_something_is_found_in_one_search_of_twenty() -> None:
    rng = np.random.default_rng(0)
    alarms = [smallest(*searched(rng, 30, 4, None)).min() <= 0.05 for _ in range(400)]
    assert 0.02 <= np.mean(alarms) <= 0.075


def test_shares_intervals_and_p_values_of_one_search() -> None:
    points, values = searched(np.random.default_rng(3), 40, 3, "line")
    found = importances(tried(points, values), [AIM], space(3))
    assert found.rows[0].knob == "knob0"
    first, *others = found.rows
    assert first.low <= first.share <= first.high
    assert first.p < 0.01
    assert all(row.p > 0.05 and row.low == 0 for row in others)
    assert first.p == pytest.approx(smallest(points, values)[0], abs=0.005)
    assert importances(tried(points, values), [AIM], space(3)) == found
    lower = [AIM.model_copy(update={"direction": "minimize"})]
    assert importances(tried(points, -values), lower, space(3)) == found


def test_the_share_of_a_single_knob_is_the_adjusted_r_squared() -> None:
    points, values = searched(np.random.default_rng(1), 25, 1, "line")
    x, y = ranks(points[:, 0]), ranks(values)
    fit = np.polynomial.Polynomial.fit(x, y, 2)(x)
    r2 = 1 - ((y - fit) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert adjusted_shares([points[:, 0]], [False], values) == pytest.approx([1 - (1 - r2) * 24 / 22])


def test_too_few_trials_or_none_that_differ_give_a_reason() -> None:
    points, values = searched(np.random.default_rng(0), 30, 4, "line")
    whole = tried(points, values)
    few = importances([*whole[:29], replace(whole[29], status="failed")], [AIM], space(4))
    assert few.rows == ()
    assert "has 29 ranked trials, and 30 are needed for 4 knobs" in few.absent
    alike = importances(tried(points, np.ones(30)), [AIM], space(4))
    assert alike.rows == ()
    assert "no trial differs" in alike.absent
    assert importances(whole, [AIM], space(4)).absent == ""


def test_infeasible_trials_rank_last_whatever_they_measured() -> None:
    points, values = searched(np.random.default_rng(0), 30, 1, None)
    whole = tried(points, values)
    over = [replace(one, feasible=one.overrides["knob0"] < 0.6) for one in whole]
    lost = [one if one.feasible else replace(one, status="diverged", values={}) for one in over]
    found = importances(over, [AIM], space(1))
    assert found.rows[0].p < 0.01
    assert importances(lost, [AIM], space(1)) == found


def test_levels_have_no_order() -> None:
    rng = np.random.default_rng(0)
    dimension = {"mode": Dimension(values=("a", "b", "c")), "lr": Dimension(low=0.0, high=1.0)}
    assert needed(dimension) == 24
    trials = [
        Tried(at, "", {"mode": mode, "lr": float(rng.random())}, "complete",
              {AIM.metric: float(rng.standard_normal() + 3 * (mode == "b"))}, True, 1)
        for at, mode in enumerate("abc" * 10)
    ]  # fmt: skip
    found = importances(trials, [AIM], dimension)
    assert found.rows[0].knob == "mode"
    assert found.rows[0].p < 0.01


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, np.inf, np.inf, 2.0])).tolist() == [3.5, 1, 3.5, 5.5, 5.5, 2]
