"""The statistics against distributions and tables whose answers are known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from reports.statistics import two_level
from reports.statistics.equivalence import equivalence_p


def crossed(
    rng: np.random.Generator, seeds: int, prompts: int, between_seeds: float, between_prompts: float, noise: float
) -> np.ndarray:
    return (
        rng.normal(0, between_seeds, (seeds, 1))
        + rng.normal(0, between_prompts, (1, prompts))
        + rng.normal(0, noise, (seeds, prompts))
    )


@pytest.mark.parametrize(
    ("seeds", "scales"),
    [(3, (0.0, 0.7, 0.7)), (3, (0.07, 0.5, 0.8)), (3, (1.0, 0.5, 0.8)), (10, (0.3, 0.5, 0.8)), (2, (0.3, 0.5, 0.8))],
)
def test_intervals_cover_what_they_state(seeds: int, scales: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(1)
    found = [two_level.mean(crossed(rng, seeds, 64, *scales)) for _ in range(300)]
    covered = np.mean([one.low is not None and one.high is not None and one.low < 0.0 < one.high for one in found])
    assert covered >= 0.925


def test_intervals_are_not_uselessly_wide() -> None:
    rng = np.random.default_rng(2)
    table = crossed(rng, 5, 256, 0.0, 1.0, 0.0)
    found = two_level.mean(table)
    classic = 2 * 1.96 * table[0].std() / math.sqrt(256)  # the seeds agree, so they add nothing
    assert found.low is not None
    assert found.high is not None
    assert classic * 0.99 < found.high - found.low < classic * 1.1


def test_a_rate_near_its_end_stays_within_and_leans_inwards() -> None:
    rng = np.random.default_rng(17)
    table = (rng.random((3, 200)) < 0.97).astype(float)
    found = two_level.rate(table)
    assert found.low is not None
    assert found.high is not None
    assert found.value - found.low > 0.0
    assert found.high < 1.0
    assert found.value - found.low > found.high - found.value
    plain = two_level.mean(table)
    assert plain.low is not None
    slope = found.value * (1 - found.value)
    logits = [math.log(x / (1 - x)) for x in (found.low, found.value, found.high)]
    assert (logits[2] - logits[1], logits[1] - logits[0]) == pytest.approx([(plain.value - plain.low) / slope] * 2)


def test_iqm_is_scipys_and_ignores_outliers() -> None:
    for shape in ((3, 64), (3, 7), (1, 5)):
        table = np.random.default_rng(10).gamma(1.0, 2.0, shape)
        assert two_level.iqm(table).value == pytest.approx(scipy_stats.trim_mean(table, 0.25, axis=None))
    table[0, 0] = 1e9
    assert two_level.iqm(table).value < 10.0


@pytest.mark.parametrize(("scales", "least"), [((0.0, 0.7, 0.7), 0.93), ((0.3, 0.5, 0.8), 0.89)])
def test_iqm_coverage(scales: tuple[float, float, float], least: float) -> None:
    rng = np.random.default_rng(11)
    found = [two_level.iqm(crossed(rng, 3, 48, *scales)) for _ in range(120)]
    assert np.mean([one.low is not None and one.high is not None and one.low < 0 < one.high for one in found]) >= least


def test_linear_table_has_the_spread_of_the_ratio() -> None:
    rng = np.random.default_rng(13)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        tokens = rng.integers(5, 30, (1, 80)).astype(float)
        return tokens * rng.gamma(4, 0.1, (1, 80)), tokens

    tables = [draw() for _ in range(800)]
    spread = np.std([top.sum() / bottom.sum() for top, bottom in tables])
    errors = [two_level.linear(*table).std(ddof=1) / math.sqrt(80) for table in tables]
    assert np.mean(errors) == pytest.approx(spread, rel=0.06)


def test_probability_of_improvement_of_two_normals() -> None:
    rng = np.random.default_rng(14)
    base = rng.normal(0, 1, (3, 1_500))
    arm = rng.normal(0.5, 1, (3, 1_500))
    found = two_level.improvement(arm, base)
    assert found.value == pytest.approx(scipy_stats.norm.cdf(0.5 / math.sqrt(2)), abs=0.02)
    assert two_level.improvement(arm, base, maximize=False).value == pytest.approx(1 - found.value)
    assert two_level.improvement(base, base).value == 0.5
    sure = two_level.improvement(base + 1, base)
    assert (sure.value, sure.high, sure.method) == (1.0, 1.0, "wilson")
    assert sure.low is not None
    assert sure.low < 1.0


def test_one_seed_is_not_mistaken_for_many_prompts() -> None:
    row = np.random.default_rng(3).normal(2.0, 1.0, (1, 400))
    found = two_level.mean(row)
    assert (found.value, found.seeds) == (pytest.approx(row.mean()), 1)
    assert found.high is not None
    prompts_alone = 1.96 * row.std() / 20
    assert found.high - found.value > 5 * prompts_alone


def test_ratio_is_the_mean_over_seeds_of_the_ratios() -> None:
    nats, tokens = np.array([[2.0, 4.0], [3.0, 3.0]]), np.array([[10.0, 20.0], [5.0, 15.0]])
    assert two_level.mean(nats, tokens).value == pytest.approx((6 / 30 + 6 / 20) / 2)
    assert two_level.difference(nats, nats / 2, tokens, tokens).value == pytest.approx((0.1 + 0.15) / 2)


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(4)
    shared = crossed(rng, 3, 128, 0.0, 5.0, 0.0)
    arm, base = shared + 0.1 + rng.normal(0, 0.05, shared.shape), shared + rng.normal(0, 0.05, shared.shape)
    paired = two_level.difference(arm, base)
    assert paired.low is not None
    assert paired.low > 0.05
    lone = two_level.mean(arm)
    assert lone.high is not None
    assert lone.low is not None
    assert lone.high - lone.low > 1.0


@pytest.mark.parametrize(
    ("seeds", "scales"), [(3, (0.3, 0.0, 0.3)), (3, (0.0, 0.5, 1.0)), (5, (1.0, 0.0, 0.3)), (2, (0.3, 0.3, 0.3))]
)
def test_a_finding_among_four_arms_holds_its_level(seeds: int, scales: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(15)
    false = 0
    for _ in range(200):
        base = crossed(rng, seeds, 40, *scales)
        effects = [two_level.difference(crossed(rng, seeds, 40, *scales), base) for _ in range(4)]
        corrected = two_level.holm([p for effect in effects if (p := two_level.two_level_p(effect)) is not None])
        verdicts = {two_level.verdict(effect, p, True) for effect, p in zip(effects, corrected, strict=True)}
        false += bool(verdicts & {"better", "worse"})
    assert false / 200 <= 0.08  # 0.05 and two standard errors


def test_the_p_value_is_the_level_of_the_interval_that_ends_at_zero() -> None:
    rng = np.random.default_rng(18)
    arm, base = crossed(rng, 3, 60, 0.1, 0.5, 0.5) + 0.3, crossed(rng, 3, 60, 0.1, 0.5, 0.5)
    p = two_level.two_level_p(two_level.difference(arm, base))
    assert p is not None
    edge = two_level.difference(arm, base, level=1 - p)
    assert edge.low == pytest.approx(0.0, abs=1e-7)


def test_an_arm_against_itself_is_identical() -> None:
    table = np.random.default_rng(19).normal(size=(3, 40))
    found = two_level.difference(table, table)
    assert (found.value, found.low, found.high, two_level.two_level_p(found)) == (0.0, 0.0, 0.0, 1.0)


def test_two_level_p_of_values_per_seed_is_students() -> None:
    values = [0.1, 0.4, 0.35]
    assert two_level.two_level_p(two_level.over_seeds(values)) == pytest.approx(
        scipy_stats.ttest_1samp(values, 0).pvalue
    )
    assert two_level.two_level_p(two_level.over_seeds([0.1])) is None
    assert two_level.two_level_p(two_level.mean(np.zeros((2, 5)))) == 1.0


def test_students_own_example() -> None:
    """Student (1908), Biometrika 6:1: hours of sleep gained by ten patients under two drugs; mean 1.58, t 4.06, 9
    degrees of freedom."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = two_level.over_seeds([b - a for a, b in zip(first, second, strict=True)])
    assert found.value == pytest.approx(1.58)
    assert found.se is not None
    assert found.value / found.se == pytest.approx(4.0621, abs=1e-4)
    assert (found.low, found.high) == (pytest.approx(0.7001, abs=1e-4), pytest.approx(2.4599, abs=1e-4))
    assert two_level.two_level_p(found) == pytest.approx(0.002833, abs=1e-6)


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
    corrected = two_level.holm(p)
    assert [one < 0.05 for one in corrected] == [True] * 3 + [False] * 12
    assert corrected[:4] == pytest.approx([0.0015, 0.0056, 0.0247, 0.114])


def test_student_interval_matches_scipy() -> None:
    values = [0.1, 0.4, 0.35]
    found = two_level.over_seeds(values)
    wanted = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert two_level.over_seeds([0.2]).low is None


@pytest.mark.parametrize(("successes", "n"), [(0, 12), (1, 3), (12, 12), (350, 512)])
def test_wilson_matches_scipy(successes: int, n: int) -> None:
    wanted = scipy_stats.binomtest(successes, n).proportion_ci(0.95, "wilson")
    found = two_level.wilson(successes, n)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_the_table_of_newcombe(successes: int, n: int, low: float, high: float) -> None:
    found = two_level.wilson(successes, n)
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
    found = two_level.rate_difference(*first, *second)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_holm_by_hand() -> None:
    assert two_level.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert two_level.holm([0.9, 0.8]) == [1.0, 1.0]
    assert two_level.holm([]) == []


def test_verdict_needs_both_the_test_and_the_interval() -> None:
    clear = two_level.Estimate(0.1, 0.05, 0.15, 3, 512, "student", 0.025, 100.0)
    wide = two_level.Estimate(0.1, -0.05, 0.25, 3, 512, "student", 0.075, 100.0)
    assert two_level.verdict(clear, 0.001, True) == "better"
    assert two_level.verdict(clear, 0.001, False) == "worse"
    assert two_level.verdict(clear, 0.2, True) == "undecided"
    assert two_level.verdict(wide, 0.001, True) == "undecided"
    assert two_level.verdict(None, None, True) == "not estimable"


def test_equivalent_is_said_only_within_the_smallest_difference() -> None:
    near = two_level.Estimate(0.01, -0.02, 0.04, 3, 512, "student", 0.015, 100.0)
    bare = two_level.Estimate(0.01, None, None, 1, 0, "none")
    outcomes = [
        [one.outcome for one in two_level.verdicts([effect], [smallest], True)]
        for effect, smallest in ((near, 0.05), (near, 0.03), (near, None), (bare, 0.05), (None, 0.05))
    ]
    assert outcomes == [["equivalent"], ["undecided"], ["undecided"], ["not estimable"], ["not estimable"]]


def test_both_tests_are_corrected_over_the_family() -> None:
    """The second effect is equivalent alone, but not beside another; the third differs by too little to matter."""
    values = (0.045, 0.02, 0.03)
    effects = [two_level.Estimate(v, v - 0.03, v + 0.03, 5, 512, "student", 0.0155, 100.0) for v in values]
    assert two_level.verdicts(effects[1:2], [0.05], True)[0].outcome == "equivalent"
    found = two_level.verdicts([*effects[:2], None], [0.05, 0.05, None], True)
    alone = [equivalence_p(effect, 0.05) for effect in effects[:2]]
    assert [one.p_equivalence for one in found] == two_level.holm([*alone, None])
    assert [one.p_holm for one in found] == two_level.holm([one.p for one in found])
    assert [one.outcome for one in found] == ["better", "undecided", "not estimable"]
    (small,) = two_level.verdicts([dataclasses.replace(effects[2], se=0.01, low=0.01, high=0.05)], [0.05], True)
    assert small.outcome == "better"
    assert small.p_equivalence is not None
    assert small.p_equivalence < 0.05


@pytest.mark.parametrize("table", [np.zeros((0, 3)), np.zeros((3, 0)), np.array([[1.0, np.nan]]), np.zeros(3)])
def test_bad_tables_are_refused(table: np.ndarray) -> None:
    with pytest.raises(ValueError, match="non-"):
        two_level.mean(table)


def test_unpaired_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="unpaired"):
        two_level.difference(np.ones((2, 3)), np.ones((3, 3)))
