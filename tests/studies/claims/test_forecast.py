from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from studies.claims.forecast import dead_groups, detectable, spread

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_dead_groups_are_those_among_all_groups_of_the_draws(size: int) -> None:
    scores = RNG.choice([-1.0, 0.0, 1.0], p=[0.1, 0.3, 0.6], size=(30, 5))
    dead = [len(set(group)) == 1 for row in scores for group in combinations(row, size)]
    assert dead_groups(scores, size) == (pytest.approx(np.mean(dead)),) * 2


@pytest.mark.parametrize(("size", "spread_of"), [(8, 0.0), (16, 0.3), (16, 0.0)])
def test_the_truth_lies_between_the_bounds_of_larger_groups(size: int, spread_of: float) -> None:
    """Many prompts, so that the error of sampling is small beside the gap."""
    right = np.clip(0.5 + spread_of * RNG.uniform(-1, 1, 20_000), 0, 1)
    low, high = dead_groups((RNG.random((20_000, 4)) < right[:, None]).astype(float), size)
    truth = np.mean(right**size + (1 - right) ** size)
    assert low - 1e-3 < truth < high
    if spread_of == 0.0:
        assert low == pytest.approx(truth, abs=1e-3), "equal prompts"


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_the_detectable_difference_is_found_in_four_of_five_studies(seeds: int) -> None:
    from scipy.stats import ttest_1samp

    assert seeds > 3 or detectable(seeds) == pytest.approx(3.264, abs=1e-3), "by the noncentral t"
    found = ttest_1samp(RNG.normal(detectable(seeds), 1.0, (20_000, seeds)), 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.012)


def test_the_spread_is_pooled_over_arms_and_studies_without_the_seeds_own_part() -> None:
    seeds, base = range(40), RNG.normal(0, 5, 40)
    arms = {arm: base + mean + RNG.normal(0, 0.3, 40) for arm, mean in (("a", 1.0), ("b", 7.0))}
    values = {("base", seed): base[seed] for seed in seeds} | {
        (arm, seed): own[seed] for arm, own in arms.items() for seed in seeds
    }
    wanted = np.mean([np.var(own - base, ddof=1) for own in arms.values()]) ** 0.5
    assert spread([("base", values), ("none", {("c", 1): 0.0})]) == (pytest.approx(wanted), 78)
    assert spread([("base", {("base", 0): 1.0, ("a", 0): 2.0})]) is None
