"""What a design could have found, against published sample sizes and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from reports.statistics import two_level as stats
from reports.statistics.power import MOST_SEEDS, detectable, seeds_needed


@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_sample_sizes_of_the_paired_t_test(effect: float, n: int) -> None:
    """Cohen's small, medium and large effect at level 0.05 and power 0.80, as G*Power gives them."""
    assert detectable(1 / np.sqrt(n), n - 1) <= effect
    assert detectable(1 / np.sqrt(n - 1), n - 2) > effect


def test_detectable_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(0)
    seeds, prompts = 4, 40
    found = 0
    truth = np.sqrt(0.2**2 / seeds + 0.5**2 / prompts)
    df = truth**4 / ((0.2**2 / seeds) ** 2 / (seeds - 1) + (0.5**2 / prompts) ** 2 / (prompts - 1))
    shift = detectable(float(truth), float(df))
    for _ in range(600):
        table = shift + rng.normal(0, 0.2, (seeds, 1)) + rng.normal(0, 0.5, (1, prompts)) + np.zeros((seeds, prompts))
        p = stats.two_level_p(
            stats.Estimate(float(table.mean()), None, None, seeds, prompts, "none", *stats.standard_error(table))
        )
        assert p is not None
        found += p < 0.05
    assert found / 600 == pytest.approx(0.8, abs=0.06)


def test_stricter_levels_need_larger_effects() -> None:
    assert detectable(0.1, 5, alpha=0.01) > detectable(0.1, 5) > detectable(0.1, 500)
    assert detectable(0.0, 5) == 0.0


def test_seeds_needed_are_those_of_the_t_test_when_only_seeds_vary() -> None:
    column = np.array([[-1.0], [0.0], [1.0]])  # standard deviation 1
    need = seeds_needed(column, 0.5)
    assert need is not None
    assert need.seeds == 34


def test_prompts_can_stand_in_the_way() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(0, 0.01, (3, 1)) + rng.normal(0, 1.0, (1, 50)) + rng.normal(0, 0.01, (3, 50))
    need = seeds_needed(table, 0.1)
    assert need is not None
    assert need.seeds is None
    assert need.smallest == pytest.approx(2.87 / np.sqrt(50), rel=0.2)
    reached = seeds_needed(table, 2 * need.smallest)
    assert reached is not None
    assert reached.seeds is not None
    assert reached.seeds <= MOST_SEEDS


def test_one_seed_knows_nothing_of_seeds() -> None:
    assert seeds_needed(np.ones((1, 10)), 0.1) is None


@pytest.mark.parametrize("df", [1.5, 5.0, 400.0])
def test_the_shift_is_where_the_noncentral_t_test_has_its_power(df: float) -> None:
    shift = detectable(1.0, df, alpha=0.05, power=0.8)
    critical = scipy.stats.t.ppf(0.975, df)
    power = scipy.stats.nct.sf(critical, df, shift) + scipy.stats.nct.cdf(-critical, df, shift)
    assert power == pytest.approx(0.8, abs=2e-4)
