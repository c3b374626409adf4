"""Differences that a design would have found, against published sample sizes and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from reports.statistics import two_level
from reports.statistics.hierarchical import Moments, moments
from reports.statistics.power import MOST_SEEDS, detectable, seeds_needed


def once(n: int) -> Moments:
    """One value per seed with standard deviation 1: the test is Student's."""
    return moments(scipy.stats.zscore(np.arange(n), ddof=1)[:, None])


@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_sample_sizes_of_the_paired_t_test(effect: float, n: int) -> None:
    """Cohen's small, medium and large effect at level 0.05 and power 0.80, as G*Power gives them."""
    assert detectable(once(n)) <= effect
    assert detectable(once(n - 1)) > effect * 0.9995


@pytest.mark.parametrize("n", [3, 6, 400])
def test_the_shift_is_where_the_noncentral_t_test_has_its_power(n: int) -> None:
    shift, df = detectable(once(n)) * np.sqrt(n), n - 1
    critical = scipy.stats.t.ppf(0.975, df)
    power = scipy.stats.nct.sf(critical, df, shift) + scipy.stats.nct.cdf(-critical, df, shift)
    assert power == pytest.approx(0.8, abs=5e-3)
    assert detectable(once(n), alpha=0.01) > detectable(once(n))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_detectable_is_found_four_times_in_five(seeds: int) -> None:
    """Where the variances are known to be those that the power was made from."""
    rng = np.random.default_rng(seeds)
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
    need = seeds_needed(once(3), 0.5)
    assert need is not None
    assert need.seeds == 34
    rng = np.random.default_rng(1)
    table = rng.normal(0, 0.01, (3, 1)) + rng.normal(0, 1.0, (1, 50)) + rng.normal(0, 0.01, (3, 50))
    few = seeds_needed(moments(table), 0.1)
    assert few is not None
    assert (few.seeds, few.smallest) == (None, pytest.approx(2.8 / np.sqrt(50), rel=0.2))
    reached = seeds_needed(moments(table), 2 * few.smallest)
    assert reached is not None
    assert reached.seeds is not None
    assert reached.seeds <= MOST_SEEDS


def test_one_seed_has_no_information_on_seeds_and_no_variance_no_limit() -> None:
    row = moments(np.random.default_rng(0).normal(size=(1, 10)))
    assert seeds_needed(row, 0.1) is None
    assert detectable(row) > 0.5 * row.spread
    assert detectable(moments(np.zeros((3, 4)))) == 0.0
