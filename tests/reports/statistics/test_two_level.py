"""The statistics against distributions and tables whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from reports.statistics import two_level as stats


def crossed(
    rng: np.random.Generator, seeds: int, prompts: int, between_seeds: float, between_prompts: float, noise: float
) -> np.ndarray:
    return (
        rng.normal(0, between_seeds, (seeds, 1))
        + rng.normal(0, between_prompts, (1, prompts))
        + rng.normal(0, noise, (seeds, prompts))
    )


@pytest.mark.parametrize(
    ("seeds", "scales", "least"),
    [
        (3, (0.0, 0.7, 0.7), 0.94),
        (3, (0.07, 0.5, 0.8), 0.94),
        (3, (0.3, 0.5, 0.8), 0.91),
        (10, (0.3, 0.5, 0.8), 0.92),
        (2, (0.3, 0.5, 0.8), 0.84),
    ],
)
def test_bootstrap_coverage_is_what_the_docstring_says(
    seeds: int, scales: tuple[float, float, float], least: float
) -> None:
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
    classic = 2 * 1.96 * table[0].std() / math.sqrt(256)  # the seeds agree, so they add nothing
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(classic, rel=0.08)


def test_iqm_is_scipys_and_ignores_outliers() -> None:
    for shape in ((3, 64), (3, 7), (1, 5)):
        table = np.random.default_rng(10).gamma(1.0, 2.0, shape)
        assert stats.iqm(table).value == pytest.approx(scipy_stats.trim_mean(table, 0.25, axis=None))
    table[0, 0] = 1e9
    assert stats.iqm(table).value < 10.0


@pytest.mark.parametrize("shape", [(1, 300), (3, 100)])
def test_iqm_interval_is_that_of_sorting_every_replicate(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(16)
    table = rng.gamma(1.0, 2.0, shape) + rng.normal(0, 0.2, (shape[0], 1))
    replicates = []
    for _ in range(3_000):
        drawn = table[rng.integers(0, shape[0], shape[0])][:, rng.integers(0, shape[1], shape[1])]
        replicates.append(scipy_stats.trim_mean(drawn, 0.25, axis=None))
    found = stats.iqm(table)
    assert found.se is not None
    assert found.df is not None
    assert found.low is not None
    assert found.high is not None
    factor = found.se / np.std(replicates) * scipy_stats.t.ppf(0.975, found.df) / scipy_stats.norm.ppf(0.975)
    low, high = np.quantile(replicates, [0.025, 0.975]) - found.value
    assert (found.low - found.value, found.high - found.value) == pytest.approx((low * factor, high * factor), rel=0.12)
    assert np.std(replicates) * math.sqrt(shape[0] / max(1, shape[0] - 1)) == pytest.approx(found.se, rel=0.25)


@pytest.mark.parametrize(("scales", "least"), [((0.0, 0.7, 0.7), 0.93), ((0.3, 0.5, 0.8), 0.89)])
def test_iqm_coverage(scales: tuple[float, float, float], least: float) -> None:
    rng = np.random.default_rng(11)
    found = [stats.iqm(crossed(rng, 3, 48, *scales)) for _ in range(120)]
    assert np.mean([one.low is not None and one.high is not None and one.low < 0 < one.high for one in found]) >= least


def test_standard_error_is_that_of_the_mean() -> None:
    rng = np.random.default_rng(12)
    tables = [crossed(rng, 4, 25, 0.3, 1.0, 0.0) for _ in range(2_000)]
    truth = 0.3**2 / 4 + 1.0 / 25
    assert np.mean([stats.standard_error(table)[0] ** 2 for table in tables]) == pytest.approx(truth, rel=0.03)
    assert np.var([table.mean() for table in tables]) == pytest.approx(truth, rel=0.1)
    assert stats.standard_error(np.zeros((3, 4))) == (0.0, 1.0)
    column = np.array([[1.0], [2.0], [4.0]])
    assert stats.standard_error(column) == (pytest.approx(scipy_stats.sem(column[:, 0])), pytest.approx(2.0))


def test_linear_table_has_the_spread_of_the_ratio() -> None:
    rng = np.random.default_rng(13)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        tokens = rng.integers(5, 30, (1, 80)).astype(float)
        return tokens * rng.gamma(4, 0.1, (1, 80)), tokens

    tables = [draw() for _ in range(800)]
    spread = np.std([top.sum() / bottom.sum() for top, bottom in tables])
    assert np.mean([stats.standard_error(stats.linear(*table))[0] for table in tables]) == pytest.approx(
        spread, rel=0.06
    )


def test_probability_of_improvement_of_two_normals() -> None:
    rng = np.random.default_rng(14)
    base = rng.normal(0, 1, (3, 1_500))
    arm = rng.normal(0.5, 1, (3, 1_500))
    found = stats.improvement(arm, base)
    assert found.value == pytest.approx(scipy_stats.norm.cdf(0.5 / math.sqrt(2)), abs=0.02)
    assert stats.improvement(arm, base, maximize=False).value == pytest.approx(1 - found.value)
    assert stats.improvement(base, base).value == 0.5
    sure = stats.improvement(base + 1, base)
    assert (sure.value, sure.high, sure.method) == (1.0, 1.0, "wilson")
    assert sure.low is not None
    assert sure.low < 1.0


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


@pytest.mark.parametrize(
    ("seeds", "scales", "most"), [(3, (0.3, 0.0, 0.3), 0.08), (3, (0.0, 0.5, 1.0), 0.06), (8, (0.3, 0.0, 0.3), 0.08)]
)
def test_a_finding_holds_its_level_when_seeds_differ(
    seeds: int, scales: tuple[float, float, float], most: float
) -> None:
    rng = np.random.default_rng(15)
    found = alone = 0
    for _ in range(300):
        arm, base = crossed(rng, seeds, 40, *scales), crossed(rng, seeds, 40, 0.0, 0.0, 0.3)
        effect, p = stats.difference(arm, base), stats.swap_test(arm, base, swaps=300)
        other = stats.two_level_p(effect)
        assert other is not None
        found += stats.verdict(effect, max(p, other), True) != "no detectable difference"
        alone += p < 0.05
    assert found / 300 <= most
    if scales[0] > 0.0:
        assert alone / 300 > 0.4  # what the swap test says of these seeds is no finding about new ones


def test_two_level_p_of_values_per_seed_is_students() -> None:
    values = [0.1, 0.4, 0.35]
    assert stats.two_level_p(stats.over_seeds(values)) == pytest.approx(scipy_stats.ttest_1samp(values, 0).pvalue)
    assert stats.two_level_p(stats.over_seeds([0.1])) is None
    assert stats.two_level_p(stats.mean(np.zeros((2, 5)))) == 1.0


def test_swap_test_never_says_zero() -> None:
    assert stats.swap_test(np.full((1, 200), 5.0), np.zeros((1, 200)), swaps=999) == 0.001


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


def test_sign_flips_of_darwins_maize_are_those_that_fisher_counted() -> None:
    """The Design of Experiments (1935), section 21: 1,726 of 2^15 arrangements differ as much as the 15 pairs, in
    eighths of an inch."""
    eighths = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert stats.seed_flip_test(eighths) == 1726 / 2**15
    table = np.array([eighths], dtype=float)
    assert stats.swap_test(table, np.zeros_like(table)) == pytest.approx(1726 / 2**15, abs=0.006)


def test_students_own_example() -> None:
    """Student (1908), Biometrika 6:1: hours of sleep gained by ten patients under two drugs; mean 1.58, t 4.06, 9
    degrees of freedom."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = stats.over_seeds([b - a for a, b in zip(first, second, strict=True)])
    assert found.value == pytest.approx(1.58)
    assert found.se is not None
    assert found.value / found.se == pytest.approx(4.0621, abs=1e-4)
    assert (found.low, found.high) == (pytest.approx(0.7001, abs=1e-4), pytest.approx(2.4599, abs=1e-4))
    assert stats.two_level_p(found) == pytest.approx(0.002833, abs=1e-6)


def test_holm_on_the_p_values_of_benjamini_and_hochberg() -> None:
    """Their trial of thrombolysis (1995, JRSS B 57:289, section 4.1), where control of the family-wise error rejects
    the first three."""
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    corrected = stats.holm(p)
    assert [one < 0.05 for one in corrected] == [True] * 3 + [False] * 12
    assert corrected[:4] == pytest.approx([0.0015, 0.0056, 0.0247, 0.114])


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


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_the_table_of_newcombe(successes: int, n: int, low: float, high: float) -> None:
    found = stats.wilson(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((0, 10), (0, 20), -0.1611, 0.2775),
    ],
)
def test_rate_difference_matches_the_table_of_newcombe(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    found = stats.rate_difference(*first, *second)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


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
