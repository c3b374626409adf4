"""Estimates, tests and verdicts against distributions and tables whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from reports.statistics import two_level
from reports.statistics.two_level import Estimate, equivalence_p

SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)
"""Hours of sleep gained by ten patients under two drugs (Student 1908, Biometrika 6:1)."""


def crossed(
    rng: np.random.Generator, seeds: int, prompts: int, between_seeds: float, between_prompts: float, noise: float
) -> np.ndarray:
    return (
        rng.normal(0, between_seeds, (seeds, 1))
        + rng.normal(0, between_prompts, (1, prompts))
        + rng.normal(0, noise, (seeds, prompts))
    )


def covers(found: Estimate, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low < truth < found.high


def at(low: float, high: float, df: float = 100.0) -> Estimate:
    """An estimate with this 95 % interval."""
    se = (high - low) / 2 / float(scipy_stats.t.ppf(0.975, df))
    return Estimate((low + high) / 2, low, high, 3, 512, "student", se, df)


@pytest.mark.parametrize(
    ("seeds", "scales"),
    [(3, (0.0, 0.7, 0.7)), (3, (0.07, 0.5, 0.8)), (3, (1.0, 0.5, 0.8)), (10, (0.3, 0.5, 0.8)), (2, (0.3, 0.5, 0.8))],
)
def test_intervals_cover_what_they_state(seeds: int, scales: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(1)
    assert np.mean([covers(two_level.mean(crossed(rng, seeds, 64, *scales)), 0.0) for _ in range(300)]) >= 0.925


@pytest.mark.parametrize(("scales", "least"), [((0.0, 0.7, 0.7), 0.93), ((0.3, 0.5, 0.8), 0.89)])
def test_intervals_of_the_interquartile_mean_cover(scales: tuple[float, float, float], least: float) -> None:
    rng = np.random.default_rng(11)
    assert np.mean([covers(two_level.iqm(crossed(rng, 3, 48, *scales)), 0.0) for _ in range(120)]) >= least


def test_intervals_are_as_wide_as_the_evidence() -> None:
    rng = np.random.default_rng(2)
    table = crossed(rng, 5, 256, 0.0, 1.0, 0.0)
    found = two_level.mean(table)
    assert found.low is not None
    classic = 1.96 * table[0].std() / math.sqrt(256)  # the seeds agree, so they add nothing
    assert classic * 0.99 < found.value - found.low < classic * 1.1
    lone = two_level.mean(rng.normal(2.0, 1.0, (1, 400)))
    assert lone.low is not None
    assert lone.value - lone.low > 5 * 1.96 / 20, "one seed is not mistaken for many prompts"


@pytest.mark.parametrize(
    ("seeds", "scales"), [(3, (0.3, 0.0, 0.3)), (3, (0.0, 0.5, 1.0)), (5, (1.0, 0.0, 0.3)), (2, (0.3, 0.3, 0.3))]
)
def test_a_finding_among_four_arms_holds_its_level(seeds: int, scales: tuple[float, float, float]) -> None:
    rng, false = np.random.default_rng(15), 0
    for _ in range(200):
        base = crossed(rng, seeds, 40, *scales)
        effects = [two_level.difference(crossed(rng, seeds, 40, *scales), base) for _ in range(4)]
        outcomes = {one.outcome for one in two_level.verdicts(effects, [None] * 4, maximize=True)}
        false += bool(outcomes & {"better", "worse"})
    assert false / 200 <= 0.08  # 0.05 and two standard errors


@pytest.mark.parametrize("between", [0.0, 0.1, 0.5])
def test_a_difference_at_the_margin_is_called_equivalent_in_at_most_one_of_twenty(between: float) -> None:
    rng = np.random.default_rng(1)
    tables = [0.4 + rng.normal(0, between, (5, 1)) + rng.normal(0, 1, (5, 100)) for _ in range(300)]
    wrong = np.mean([(equivalence_p(two_level.mean(table), 0.4) or 0.0) < 0.05 for table in tables])
    assert wrong <= 0.075  # 0.05 and two standard errors


def test_a_ratio_is_the_mean_over_seeds_of_the_ratios_and_has_their_spread() -> None:
    nats, tokens = np.array([[2.0, 4.0], [3.0, 3.0]]), np.array([[10.0, 20.0], [5.0, 15.0]])
    assert two_level.mean(nats, tokens).value == pytest.approx((6 / 30 + 6 / 20) / 2)
    assert two_level.difference(nats, nats / 2, tokens, tokens).value == pytest.approx((0.1 + 0.15) / 2)
    line = two_level.linear(nats, tokens)  # to first order, a cell is the ratio plus its share of the residual
    assert line[0].tolist() == pytest.approx([0.2 + (2 - 0.2 * 10) / 15, 0.2 + (4 - 0.2 * 20) / 15])
    assert line[1].tolist() == pytest.approx([0.3 + (3 - 0.3 * 5) / 10, 0.3 + (3 - 0.3 * 15) / 10])
    rng = np.random.default_rng(13)
    bottom = rng.integers(5, 30, (800, 1, 80)).astype(float)
    top = bottom * rng.gamma(4, 0.1, bottom.shape)
    errors = two_level.linear(top, bottom).std(-1, ddof=1) / math.sqrt(80)
    assert errors.mean() == pytest.approx((top.sum(-1) / bottom.sum(-1)).std(), rel=0.06)


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(4)
    shared = crossed(rng, 3, 128, 0.0, 5.0, 0.0)
    arm, base = shared + 0.1 + rng.normal(0, 0.05, shared.shape), shared + rng.normal(0, 0.05, shared.shape)
    paired, lone = two_level.difference(arm, base), two_level.mean(arm)
    assert paired.low is not None
    assert lone.low is not None
    assert paired.low > 0.05
    assert lone.value - lone.low > 0.5
    same = two_level.difference(arm, arm)
    assert (same.value, same.low, same.high, two_level.two_level_p(same)) == (0.0, 0.0, 0.0, 1.0)


def test_the_p_value_is_the_level_of_the_interval_that_ends_at_zero() -> None:
    rng = np.random.default_rng(18)
    arm, base = crossed(rng, 3, 60, 0.1, 0.5, 0.5) + 0.3, crossed(rng, 3, 60, 0.1, 0.5, 0.5)
    p = two_level.two_level_p(two_level.difference(arm, base))
    assert p is not None
    assert two_level.difference(arm, base, level=1 - p).low == pytest.approx(0.0, abs=1e-7)


def test_over_seeds_it_is_students_test() -> None:
    found = two_level.over_seeds([b - a for a, b in zip(*SLEEP, strict=True)])
    assert found.se is not None
    assert (found.value, found.value / found.se) == (pytest.approx(1.58), pytest.approx(4.0621, abs=1e-4))
    assert (found.low, found.high) == (pytest.approx(0.7001, abs=1e-4), pytest.approx(2.4599, abs=1e-4))
    assert two_level.two_level_p(found) == pytest.approx(0.002833, abs=1e-6)
    assert two_level.over_seeds([0.2]).low is two_level.two_level_p(two_level.over_seeds([0.2])) is None
    assert two_level.two_level_p(two_level.mean(np.zeros((2, 5)))) == 1.0


def test_a_rate_has_its_interval_on_the_scale_of_logits() -> None:
    table = (np.random.default_rng(17).random((3, 200)) < 0.97).astype(float)
    found, plain = two_level.rate(table), two_level.mean(table)
    assert found.low is not None
    assert found.high is not None
    assert plain.low is not None
    assert 0 < found.high - found.value < found.value - found.low
    logits = [math.log(x / (1 - x)) for x in (found.low, found.value, found.high)]
    half = (plain.value - plain.low) / (found.value * (1 - found.value))
    assert np.diff(logits).tolist() == pytest.approx([half] * 2)


def test_the_interquartile_mean_is_scipys_and_ignores_outliers() -> None:
    for shape in ((3, 64), (3, 7), (1, 5)):
        table = np.random.default_rng(10).gamma(1.0, 2.0, shape)
        assert two_level.iqm(table).value == pytest.approx(scipy_stats.trim_mean(table, 0.25, axis=None))
    table[0, 0] = 1e9
    assert two_level.iqm(table).value < 10.0


def test_the_probability_of_improvement_counts_ties_half() -> None:
    rng = np.random.default_rng(14)
    base, arm = rng.normal(0, 1, (3, 1_500)), rng.normal(0.5, 1, (3, 1_500))
    found = two_level.improvement(arm, base)
    assert found.value == pytest.approx(scipy_stats.norm.cdf(0.5 / math.sqrt(2)), abs=0.02)
    assert two_level.improvement(arm, base, maximize=False).value == pytest.approx(1 - found.value)
    assert two_level.improvement(base, base).value == 0.5
    sure = two_level.improvement(base + 1, base)
    assert (sure.value, sure.low, sure.high, sure.method) == (1.0, two_level.wilson(1500, 1500).low, 1.0, "wilson")


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.9, 0.8], [1.0, 1.0]),
        ([0.01, None], [0.01, None]),
        ([], []),
        # A trial of thrombolysis, of which control of the family-wise error rejects the first three hypotheses
        # (Benjamini and Hochberg 1995, JRSS B 57:289, section 4.1).
        (
            [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262, 0.5719, 0.6528],
            [0.0013, 0.0048, 0.0209, 0.095, 0.1809, 0.2224, 0.2224, 0.2224, 0.2295, 1, 1, 1, 1],
        ),
    ],
)
def test_holm_by_hand(p_values: list[float | None], corrected: list[float | None]) -> None:
    assert two_level.holm(p_values) == pytest.approx(corrected)


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


def test_equivalence_is_the_larger_of_two_one_sided_t_tests() -> None:
    values = [0.01, 0.03, -0.02, 0.015, 0.0]
    below = scipy_stats.ttest_1samp(values, -0.04, alternative="greater").pvalue
    above = scipy_stats.ttest_1samp(values, 0.04, alternative="less").pvalue
    assert equivalence_p(two_level.over_seeds(values), 0.04) == pytest.approx(max(below, above))
    assert equivalence_p(two_level.over_seeds([0.1, 0.1, 0.1]), 0.05) == 1.0
    assert equivalence_p(Estimate(0.0, None, None, 1, 0, "none"), 0.05) is None


def test_equivalence_holds_where_the_90_percent_interval_lies_within_the_margins() -> None:
    rng, seen = np.random.default_rng(0), set()
    for _ in range(40):
        table = rng.normal(0.05, 0.05, (3, 1)) + rng.normal(0, 1, (3, 200))
        narrow, p = two_level.mean(table, level=0.9), equivalence_p(two_level.mean(table), 0.35)
        assert narrow.low is not None
        assert narrow.high is not None
        assert p is not None
        within = narrow.low > -0.35 and narrow.high < 0.35
        assert (p < 0.05) == within
        seen.add(within)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("effect", "p", "maximize", "outcome"),
    [
        (at(0.05, 0.15), 0.001, True, "better"),
        (at(0.05, 0.15), 0.001, False, "worse"),
        (at(0.05, 0.15), 0.2, True, "undecided"),
        (at(-0.05, 0.25), 0.001, True, "undecided"),
        (None, None, True, "not estimable"),
    ],
)
def test_a_verdict_needs_both_the_test_and_the_interval(
    effect: Estimate | None, p: float | None, maximize: bool, outcome: str
) -> None:
    assert two_level.verdict(effect, p, maximize) == outcome


@pytest.mark.parametrize(
    ("effect", "smallest", "outcome"),
    [
        (at(-0.02, 0.04), 0.05, "equivalent"),
        (at(-0.02, 0.04), 0.03, "undecided"),
        (at(-0.02, 0.04), None, "undecided"),
        (at(0.01, 0.05), 0.2, "better"),
        (Estimate(0.01, None, None, 1, 0, "none"), 0.05, "not estimable"),
        (None, 0.05, "not estimable"),
    ],
)
def test_equivalent_is_found_only_within_the_smallest_difference(
    effect: Estimate | None, smallest: float | None, outcome: str
) -> None:
    assert two_level.verdicts([effect], [smallest], maximize=True)[0].outcome == outcome


def test_both_tests_are_corrected_over_the_family() -> None:
    """The second effect is equivalent alone, but not next to another one."""
    effects = [replace(at(v - 0.03, v + 0.03), se=0.0155) for v in (0.045, 0.02)]
    assert two_level.verdicts(effects[1:], [0.05], True)[0].outcome == "equivalent"
    found = two_level.verdicts([*effects, None], [0.05, 0.05, None], True)
    alone = [equivalence_p(effect, 0.05) for effect in effects]
    assert [one.p_equivalence for one in found] == two_level.holm([*alone, None])
    assert [one.p_holm for one in found] == two_level.holm([one.p for one in found])
    assert [one.outcome for one in found] == ["better", "undecided", "not estimable"]


@pytest.mark.parametrize("table", [np.zeros((0, 3)), np.zeros((3, 0)), np.array([[1.0, np.nan]]), np.zeros(3)])
def test_bad_tables_are_refused(table: np.ndarray) -> None:
    with pytest.raises(ValueError, match="non-"):
        two_level.mean(table)
    with pytest.raises(ValueError, match="unpaired"):
        two_level.difference(np.ones((2, 3)), np.ones((3, 3)))
