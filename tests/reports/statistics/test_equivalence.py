"""Equivalence against the interval that it is defined by, and its rate of errors at the margin."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from reports.statistics import two_level
from reports.statistics.equivalence import equivalence_p


def test_it_is_the_larger_of_two_one_sided_t_tests() -> None:
    values = [0.01, 0.03, -0.02, 0.015, 0.0]
    found = equivalence_p(two_level.over_seeds(values), 0.04)
    below = stats.ttest_1samp(values, -0.04, alternative="greater").pvalue
    above = stats.ttest_1samp(values, 0.04, alternative="less").pvalue
    assert found == pytest.approx(max(below, above))


def test_it_holds_where_the_90_percent_interval_lies_within_the_margins() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(40):
        table = rng.normal(0.05, 0.05, (3, 1)) + rng.normal(0, 1, (3, 200))
        narrow = two_level.mean(table, level=0.9)
        assert narrow.low is not None
        assert narrow.high is not None
        within = narrow.low > -0.35 and narrow.high < 0.35
        p = equivalence_p(two_level.mean(table), 0.35)
        assert p is not None
        assert (p < 0.05) == within
        seen.add(within)
    assert seen == {True, False}


def test_beyond_a_margin_nothing_is_equivalent() -> None:
    assert equivalence_p(two_level.over_seeds([0.1, 0.1, 0.1]), 0.05) == 1.0
    assert equivalence_p(two_level.Estimate(0.0, None, None, 1, 0, "none"), 0.05) is None


@pytest.mark.parametrize("between", [0.0, 0.1, 0.5])
def test_a_difference_at_the_margin_is_called_equivalent_in_at_most_one_of_twenty(between: float) -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        table = 0.4 + rng.normal(0, between, (5, 1)) + rng.normal(0, 1, (5, 100))
        wrong += (equivalence_p(two_level.mean(table), 0.4) or 0.0) < 0.05
    assert wrong / 300 <= 0.075  # 0.05 and two standard errors
