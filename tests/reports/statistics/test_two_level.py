from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats
from scipy import stats as scipy_stats

from pipeline.intervals import wilson
from reports.statistics import two_level
from reports.statistics.contrast import Expected, Judged, against, combine, conjunction, decide, estimate
from reports.statistics.hierarchical import LONE, SCALE, Moments, moments, posterior
from reports.statistics.power import detectable, seeds_needed
from reports.statistics.two_level import Estimate, equivalence_p

SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)
"""Hours of sleep gained by ten patients under two drugs (Student 1908, Biometrika 6:1)."""


def crossed(rng: np.random.Generator, seeds: int, prompts: int, *scales: float) -> np.ndarray:
    shapes = ((seeds, 1), (1, prompts), (seeds, prompts))
    return np.asarray(sum(rng.normal(0, scale, shape) for scale, shape in zip(scales, shapes, strict=True)))


def at(low: float, high: float, df: float = 100.0) -> Estimate:
    se = (high - low) / 2 / float(scipy_stats.t.ppf(0.975, df))
    return Estimate((low + high) / 2, low, high, 3, 512, "student", se, df)


def difference(arm: np.ndarray, base: np.ndarray) -> Estimate:
    return estimate([1, -1], [(arm, None), (base, None)])


def test_intervals_are_as_wide_as_the_evidence() -> None:
    rng = np.random.default_rng(2)
    table = crossed(rng, 5, 256, 0.0, 1.0, 0.0)
    found = two_level.mean(table)
    classic = 1.96 * table[0].std() / math.sqrt(256)  # the seeds agree, so they add nothing
    assert classic * 0.99 < found.value - found.low < classic * 1.1
    lone = two_level.mean(rng.normal(2.0, 1.0, (1, 400)))
    assert lone.value - lone.low > 5 * 1.96 / 20, "one seed is not mistaken for many prompts"


def test_a_ratio_is_the_mean_over_seeds_of_the_ratios() -> None:
    nats, tokens = np.array([[2.0, 4.0], [3.0, 3.0]]), np.array([[10.0, 20.0], [5.0, 15.0]])
    assert two_level.mean(nats, tokens).value == pytest.approx((6 / 30 + 6 / 20) / 2)
    halved = estimate([1, -1], [(nats, tokens), (nats / 2, tokens)])
    assert halved.value == pytest.approx((0.1 + 0.15) / 2)
    line = two_level.linear(nats, tokens)  # to first order, a cell is the ratio plus its share of the residual
    assert line[0].tolist() == pytest.approx([0.2 + (2 - 0.2 * 10) / 15, 0.2 + (4 - 0.2 * 20) / 15])
    assert line[1].tolist() == pytest.approx([0.3 + (3 - 0.3 * 5) / 10, 0.3 + (3 - 0.3 * 15) / 10])


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(4)
    shared = crossed(rng, 3, 128, 0.0, 5.0, 0.0)
    arm, base = shared + 0.1 + rng.normal(0, 0.05, shared.shape), shared + rng.normal(0, 0.05, shared.shape)
    paired, same = difference(arm, base), difference(arm, arm)
    assert paired.low > 0.05
    assert (same.value, same.low, same.high, two_level.two_level_p(same)) == (0.0, 0.0, 0.0, 1.0)


def test_the_p_value_is_the_level_of_the_interval_that_ends_at_zero() -> None:
    rng = np.random.default_rng(18)
    arm, base = crossed(rng, 3, 60, 0.1, 0.5, 0.5) + 0.3, crossed(rng, 3, 60, 0.1, 0.5, 0.5)
    found = difference(arm, base)
    assert found.posterior is not None
    assert found.posterior.half_width(1 - two_level.two_level_p(found)) == pytest.approx(found.value, abs=1e-7)


def test_over_seeds_it_is_students_test() -> None:
    found = two_level.over_seeds([b - a for a, b in zip(*SLEEP, strict=True)])
    assert (found.value, found.value / found.se) == (pytest.approx(1.58), pytest.approx(4.0621, abs=1e-4))
    assert (found.low, found.high) == (pytest.approx(0.7001, abs=1e-4), pytest.approx(2.4599, abs=1e-4))
    assert two_level.two_level_p(found) == pytest.approx(0.002833, abs=1e-6)
    assert two_level.over_seeds([0.2]).low is two_level.two_level_p(two_level.over_seeds([0.2])) is None


def test_a_rate_has_its_interval_on_the_scale_of_logits() -> None:
    table = (np.random.default_rng(17).random((3, 200)) < 0.97).astype(float)
    found, plain = two_level.rate(table), two_level.mean(table)
    logits = [math.log(x / (1 - x)) for x in (found.low, found.value, found.high)]
    half = (plain.value - plain.low) / (found.value * (1 - found.value))
    assert np.diff(logits).tolist() == pytest.approx([half] * 2)
    sure = two_level.rate(np.ones((3, 20)))
    assert (sure.value, sure.low, sure.high, sure.method) == (1.0, wilson(1.0, 20)[0], 1.0, "wilson")


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.9, 0.8], [1.0, 1.0]),
        ([0.01, None], [0.01, None]),
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


@pytest.mark.parametrize(("successes", "n", "low", "high"), [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)])
def test_wilson_matches_the_table_of_newcombe(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes / n, n) == pytest.approx((low, high), abs=5e-5)


def test_equivalence_is_the_larger_of_two_one_sided_t_tests() -> None:
    values = [0.01, 0.03, -0.02, 0.015, 0.0]
    below = scipy_stats.ttest_1samp(values, -0.04, alternative="greater").pvalue
    above = scipy_stats.ttest_1samp(values, 0.04, alternative="less").pvalue
    assert equivalence_p(two_level.over_seeds(values), 0.04) == pytest.approx(max(below, above))
    assert equivalence_p(two_level.over_seeds([0.1, 0.1, 0.1]), 0.05) == 1.0
    assert equivalence_p(Estimate(0.0, None, None, 1, 0, "none"), 0.05) is None


@pytest.mark.parametrize(
    ("effect", "smallest", "maximize", "outcome"),
    [
        (at(0.05, 0.15), None, True, "better"),
        (at(0.05, 0.15), None, False, "worse"),
        (at(-0.15, -0.05), None, True, "worse"),
        (at(-0.05, 0.25), None, True, "undecided"),
        (at(-0.02, 0.04), 0.05, True, "equivalent"),
        (at(-0.02, 0.04), 0.03, True, "undecided"),
        (at(0.01, 0.05), 0.2, True, "better"),
        (Estimate(0.01, None, None, 1, 0, "none"), 0.05, True, "not estimable"),
        (None, 0.05, True, "not estimable"),
    ],
)
def test_verdicts_of_one_effect(effect: Estimate | None, smallest: float | None, maximize: bool, outcome: str) -> None:
    assert two_level.verdicts([effect], [smallest], maximize)[0].outcome == outcome


def test_both_tests_are_corrected_over_the_family() -> None:
    """The second effect is equivalent alone, but not next to another one; a small p needs its interval as well."""
    effects = [replace(at(v - 0.03, v + 0.03), se=0.0155) for v in (0.045, 0.02)]
    assert two_level.verdicts(effects[1:], [0.05], True)[0].outcome == "equivalent"
    found = two_level.verdicts([*effects, None], [0.05, 0.05, None], True)
    alone = [equivalence_p(effect, 0.05) for effect in effects]
    assert [one.p_equivalence for one in found] == two_level.holm([*alone, None])
    assert [one.p_holm for one in found] == two_level.holm([one.p for one in found])
    assert [one.outcome for one in found] == ["better", "undecided", "not estimable"]
    assert two_level.verdict(at(-0.05, 0.25), 0.001, True) == "undecided"


@pytest.mark.parametrize("table", [np.zeros((0, 3)), np.array([[1.0, np.nan]]), np.zeros(3)])
def test_bad_tables_are_refused(table: np.ndarray) -> None:
    with pytest.raises(ValueError, match="non-"):
        two_level.mean(table)


def test_a_contrast_is_the_weighted_sum_of_its_tables() -> None:
    noise = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 5.0]])  # common to all arms
    weights, given = [1, -1, -1, 1], [(noise + mean, None) for mean in (7.0, 4.0, 2.5, 1.0)]
    np.testing.assert_allclose(combine(weights, given), (7.0 - 4.0) - (2.5 - 1.0))
    assert estimate(weights, given).value == pytest.approx(1.5)
    nats, tokens = np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([[2.0, 2.0], [4.0, 1.0]])
    np.testing.assert_allclose(combine([1, -1], [(nats, tokens), (nats / 2, tokens)]).mean(1), [0.5, 0.4])
    lone = estimate([1, -1], [(np.array([[3.0], [4.0], [8.0]]), None), (np.ones((3, 1)), None)])
    assert lone == two_level.over_seeds([2.0, 3.0, 7.0])
    with pytest.raises(ValueError, match="all of one shape"):
        combine([1, -1], [(np.zeros((2, 3)), None), (np.zeros((2, 2)), None)])


def around(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 5, 10, "hierarchical", (high - low) / 4, 8.0)


@pytest.mark.parametrize(
    ("low", "high", "expect", "margin", "outcome"),
    [
        (0.1, 0.3, "higher", 0.0, "SUPPORTED"),
        (-0.1, 0.3, "higher", 0.0, "UNDECIDED"),
        (-0.3, -0.1, "higher", 0.0, "REFUTED"),
        (0.1, 0.3, "higher", 0.2, "UNDECIDED"),
        (0.1, 0.3, "higher", 0.4, "REFUTED"),
        (-0.3, -0.1, "lower", 0.0, "SUPPORTED"),
        (-0.3, -0.1, "lower", 0.4, "REFUTED"),
        (-0.1, 0.1, "equal", 0.2, "SUPPORTED"),
        (-0.1, 0.3, "equal", 0.2, "UNDECIDED"),
        (-0.3, -0.21, "equal", 0.2, "REFUTED"),
    ],
)
def test_what_an_interval_says(low: float, high: float, expect: Expected, margin: float, outcome: Judged) -> None:
    assert decide([against(around(low, high), expect, margin)])[0][0] == outcome


def test_p_is_that_of_the_bound() -> None:
    effect = around(0.1, 0.3)
    p = two_level.two_level_p(effect)
    assert (against(effect, "higher"), against(effect, "lower")) == ((True, p), (False, p))
    assert against(around(0.0, 0.2), "higher", 0.1)[1] == pytest.approx(1.0)
    assert against(around(-0.1, 0.1), "equal", 0.2) == (True, pytest.approx(p / 2))
    assert against(around(0.2, 0.4), "equal", 0.1) == (False, pytest.approx(p))
    # The 95 % interval of this effect leaves the margin, its 90 % interval does not.
    for margin, judged in ((0.095, "SUPPORTED"), (0.09, "UNDECIDED")):
        assert decide([against(around(-0.1, 0.1), "equal", margin)])[0][0] == judged


def test_all_steps_support_and_any_refutes() -> None:
    assert conjunction([(True, 0.01), (True, 0.04)]) == (True, 0.04)
    assert conjunction([(True, 0.001), (False, 0.02), (False, 0.9)]) == (False, pytest.approx(0.06))
    assert conjunction([(False, 0.9), (True, 0.001)]) == (False, 1.0)
    bare = against(Estimate(1.0, None, None, 1, 0, "none"), "higher")
    assert (bare, conjunction([bare, (True, 0.01)])) == ((True, None), (False, None))


def test_the_family_is_all_hypotheses_tested_or_not() -> None:
    verdicts = decide([(True, 0.01), (False, 0.02), (True, None), (True, 0.03)])
    assert verdicts == [
        ("SUPPORTED", pytest.approx(0.04)), ("UNDECIDED", pytest.approx(0.06)), ("UNDECIDED", None),
        ("UNDECIDED", pytest.approx(0.06)),
    ]  # fmt: skip
    assert [word for word, _ in decide([(True, 0.001), (False, 0.02), (True, 0.5)])] == [
        "SUPPORTED", "REFUTED", "UNDECIDED",
    ]  # fmt: skip


def test_without_prompts_it_is_student() -> None:
    values = np.array([[0.1], [0.4], [0.35], [0.2]])
    found = posterior(moments(values))
    wanted = stats.ttest_1samp(values[:, 0], 0.0)
    low, high = wanted.confidence_interval(0.95)
    assert found.half_width(0.95) == pytest.approx((high - low) / 2, rel=1e-4)
    assert found.beyond(values.mean()) == pytest.approx(wanted.pvalue, rel=1e-4)


@pytest.mark.parametrize("seeds", [1, 2, 8])
def test_it_is_the_integral_over_the_standard_deviation_between_seeds(seeds: int) -> None:
    between, within, prompts, spread = 0.02 * (seeds > 1), 0.003, 0.002, 1.0

    def weight(tau: float) -> float:
        prior = 1 / (1 + (tau / LONE) ** 2) if seeds == 1 else 1 / (SCALE + tau)
        variance = tau**2 + within
        return float(prior * variance ** (-(seeds - 1) / 2) * np.exp(-(seeds - 1) * between / 2 / variance))

    def tail(tau: float) -> float:
        return float(weight(tau) * 2 * stats.norm.sf(0.3, scale=np.sqrt(tau**2 / seeds + prompts)))

    parts = [(0.0, 0.1), (0.1, 1.0), (1.0, 10.0), (10.0, np.inf)]
    total, far = (sum(integrate.quad(f, *ends, limit=200)[0] for ends in parts) for f in (weight, tail))
    found = posterior(Moments(seeds, *map(np.asarray, (0.0, between, within, prompts, spread))))
    assert found.beyond(0.3) == pytest.approx(far / total, rel=2e-3)


def test_half_width_inverts_the_tail_for_many_tables_at_once() -> None:
    rng = np.random.default_rng(0)
    found = posterior(moments(rng.normal(size=(50, 3, 30)) + rng.normal(0, 1, (50, 3, 1)) * rng.random((50, 1, 1))))
    for level in (0.5, 0.95, 0.9999):
        assert found.beyond(found.half_width(level)) == pytest.approx(1 - level, rel=1e-6)


def test_moments_are_unbiased() -> None:
    rng, shape = np.random.default_rng(1), (4_000, 4, 25)
    of_seeds, of_prompts = rng.normal(0, 0.3, (*shape[:2], 1)), rng.normal(0, 1.0, (shape[0], 1, shape[2]))
    found = moments(of_seeds + of_prompts + rng.normal(0, 0.5, shape))
    noise = 0.5**2 / 25
    assert found.within.mean() == pytest.approx(noise, rel=0.02)
    assert found.between.mean() == pytest.approx(0.3**2 + noise, rel=0.03)
    assert found.prompts.mean() * 22 / 24 == pytest.approx(1.0 / 25 + noise / 4, rel=0.02)
    assert (found.spread**2).mean() == pytest.approx(1.0 + 0.5**2, rel=0.02)
    assert np.var(found.mean) == pytest.approx(0.3**2 / 4 + 1.0 / 25 + noise / 4, rel=0.06)


def once(n: int) -> Moments:
    """One value per seed with standard deviation 1: the test is Student's."""
    return moments(stats.zscore(np.arange(n), ddof=1)[:, None])


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
