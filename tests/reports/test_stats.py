"""The statistics against distributions and tables whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from reports import stats


def crossed(rng: np.random.Generator, seeds: int, prompts: int, between_seeds: float, between_prompts: float, noise: float) -> np.ndarray:
    return rng.normal(0, between_seeds, (seeds, 1)) + rng.normal(0, between_prompts, (1, prompts)) + rng.normal(0, noise, (seeds, prompts))


@pytest.mark.parametrize(
    ("seeds", "scales", "least"),
    [(3, (0.0, 0.7, 0.7), 0.92), (3, (0.07, 0.5, 0.8), 0.92), (3, (0.3, 0.5, 0.8), 0.78), (10, (0.3, 0.5, 0.8), 0.90)],
)
def test_bootstrap_coverage_is_what_the_docstring_says(seeds: int, scales: tuple[float, float, float], least: float) -> None:
    rng = np.random.default_rng(1)
    tables = [crossed(rng, seeds, 64, *scales) for _ in range(200)]
    covered = []
    for table in tables:
        found = stats.mean(table)
        assert found.low is not None
        assert found.high is not None
        covered.append(found.low < 0.0 < found.high)
    assert np.mean(covered) >= least


def test_bootstrap_is_not_uselessly_wide() -> None:
    rng = np.random.default_rng(2)
    table = crossed(rng, 3, 256, 0.0, 1.0, 0.0)
    found = stats.mean(table)
    classic = 2 * 1.96 * table[0].std() / math.sqrt(256)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(classic, rel=0.08)


def test_one_seed_speaks_of_prompts_alone() -> None:
    row = np.random.default_rng(3).normal(2.0, 1.0, (1, 400))
    found = stats.mean(row)
    assert found.value == pytest.approx(row.mean())
    assert found.seeds == 1
    assert found.high == pytest.approx(row.mean() + 1.96 * row.std() / 20, abs=0.02)


def test_ratio_is_the_mean_over_seeds_of_the_ratios() -> None:
    nats, tokens = np.array([[2.0, 4.0], [3.0, 3.0]]), np.array([[10.0, 20.0], [5.0, 15.0]])
    assert stats.mean(nats, tokens).value == pytest.approx((6 / 30 + 6 / 20) / 2)
    assert stats.difference(nats, nats / 2, tokens, tokens).value == pytest.approx((0.1 + 0.15) / 2)


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(4)
    shared = crossed(rng, 3, 128, 0.0, 5.0, 0.0)
    arm, base = shared + 0.1 + rng.normal(0, 0.05, shared.shape), shared + rng.normal(0, 0.05, shared.shape)
    paired = stats.difference(arm, base)
    assert paired.low is not None
    assert paired.low > 0.05
    lone = stats.mean(arm)
    assert lone.high is not None
    assert lone.low is not None
    assert lone.high - lone.low > 1.0


def test_same_input_same_interval() -> None:
    table = np.random.default_rng(5).normal(size=(3, 50))
    stats._draws.cache_clear()
    first = stats.mean(table)
    stats._draws.cache_clear()
    assert stats.mean(table.copy()) == first


def test_swap_test_holds_its_level() -> None:
    rng = np.random.default_rng(6)
    rejected = 0
    for _ in range(400):
        shared = rng.normal(0, 1, (1, 40))
        arm, base = shared + rng.normal(0, 1, (3, 40)), shared + rng.normal(0, 1, (3, 40))
        rejected += stats.swap_test(arm, base, swaps=400) < 0.05
    assert scipy_stats.binomtest(rejected, 400, 0.05).pvalue > 0.01


def test_swap_test_counts_prompts_once_however_many_seeds_repeat_them() -> None:
    row = np.random.default_rng(7).normal(0.3, 1.0, (1, 30))
    once = stats.swap_test(row, np.zeros_like(row))
    thrice = stats.swap_test(np.repeat(row, 3, axis=0), np.zeros((3, 30)))
    assert thrice == pytest.approx(once, abs=0.02)


def test_swap_test_agrees_with_the_exact_sign_flip() -> None:
    rng = np.random.default_rng(8)
    arm = rng.normal(0.4, 1.0, (1, 10))
    exact = stats.seed_flip_test(list(arm[0]))
    assert stats.swap_test(arm, np.zeros_like(arm)) == pytest.approx(exact, abs=0.015)


def test_swap_test_of_ratios_and_of_identical_arms() -> None:
    rng = np.random.default_rng(9)
    nats, tokens = rng.gamma(2, 1, (2, 60)), rng.integers(5, 30, (2, 60)).astype(float)
    assert stats.swap_test(nats, nats, tokens, tokens) == 1.0
    assert stats.swap_test(nats * 2, nats, tokens, tokens) < 0.001


def test_seed_flip_cannot_go_below_a_quarter_with_three_seeds() -> None:
    assert stats.seed_flip_test([1.0, 2.0, 3.0]) == 0.25
    assert stats.seed_flip_test([1.0, -1.0]) == 1.0


def test_student_interval_matches_scipy() -> None:
    values = [0.1, 0.4, 0.35]
    found = stats.over_seeds(values)
    wanted = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert stats.over_seeds([0.2]).low is None


@pytest.mark.parametrize(("successes", "n"), [(0, 12), (1, 3), (12, 12), (350, 512)])
def test_wilson_matches_scipy(successes: int, n: int) -> None:
    wanted = scipy_stats.binomtest(successes, n).proportion_ci(0.95, "wilson")
    found = stats.wilson(successes, n)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_verdict_needs_both_the_test_and_the_interval() -> None:
    clear = stats.Estimate(0.1, 0.05, 0.15, 3, 512, "bootstrap")
    wide = stats.Estimate(0.1, -0.05, 0.25, 3, 512, "bootstrap")
    assert stats.verdict(clear, 0.001, True) == "better"
    assert stats.verdict(clear, 0.001, False) == "worse"
    assert stats.verdict(clear, 0.2, True) == "no detectable difference"
    assert stats.verdict(wide, 0.001, True) == "no detectable difference"
    assert stats.verdict(None, None, True) == "not estimable"


@pytest.mark.parametrize("table", [np.zeros((0, 3)), np.zeros((3, 0)), np.array([[1.0, np.nan]]), np.zeros(3)])
def test_bad_tables_are_refused(table: np.ndarray) -> None:
    with pytest.raises(ValueError, match="non-"):
        stats.mean(table)


def test_unpaired_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="unpaired"):
        stats.difference(np.ones((2, 3)), np.ones((3, 3)))
