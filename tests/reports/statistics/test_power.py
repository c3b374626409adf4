"""Differences that a design would have found, against published sample sizes and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from reports.statistics import two_level
from reports.statistics.hierarchical import Moments, moments
from reports.statistics.power import detectable, seeds_needed


def once(n: int) -> Moments:
    """One value per seed with standard deviation 1: the test is Student's."""
    return moments(scipy.stats.zscore(np.arange(n), ddof=1)[:, None])


@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_sample_sizes_of_the_paired_t_test(effect: float, n: int) -> None:
    """Cohen's small, medium and large effect at level 0.05 and power 0.80, as G*Power gives them."""
    assert detectable(once(n)) <= effect
    assert detectable(once(n - 1)) > effect * 0.9995
    assert detectable(once(n), alpha=0.01) > detectable(once(n))


def test_detectable_is_found_four_times_in_five() -> None:
    """Known variances, equal to those that the power was made from."""
    rng, seeds = np.random.default_rng(3), 3
    between, prompts, own, rest = 0.1, 100, 0.3, 0.5
    numbers = (0.0, between**2 + rest**2 / prompts, rest**2 / prompts, (own**2 + rest**2 / seeds) / prompts)
    known = Moments(seeds, *map(np.asarray, (*numbers, np.hypot(own, rest))))
    shift, found = detectable(known), 0
    for _ in range(400):
        table = shift + rng.normal(0, between, (seeds, 1)) + rng.normal(0, own, (1, prompts))
        p = two_level.two_level_p(two_level.mean(table + rng.normal(0, rest, (seeds, prompts))))
        found += p is not None and p < 0.05
    assert found / 400 == pytest.approx(0.8, abs=0.06)


def test_seeds_needed_are_those_of_the_t_test_when_only_seeds_vary_and_none_when_prompts_do() -> None:
    assert seeds_needed(once(3), 0.5) == 34
    rng = np.random.default_rng(1)
    table = rng.normal(0, 0.01, (3, 1)) + rng.normal(0, 1.0, (1, 50)) + rng.normal(0, 0.01, (3, 50))
    least = 2.8 / np.sqrt(50)  # what no number of seeds finds less of
    assert seeds_needed(moments(table), 0.8 * least) is None
    assert seeds_needed(moments(table), 1.3 * least) is not None
    row = moments(rng.normal(size=(1, 10)))
    assert seeds_needed(row, 0.1) is None, "one seed has no information on seeds"
    assert detectable(moments(np.zeros((3, 4)))) == 0.0
