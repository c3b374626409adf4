"""Arms against the baseline's method at equal drift: which are compared, with what, and what comes out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from reports.findings.matched_kl import FIXED_BETA, MatchedKL, base_method, matched, metrics
from reports.findings.pairs import shared
from reports.records.load import StudyRecords, load_records
from reports.statistics import two_level
from reports.statistics.matched_kl import interpolate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.conftest import Builder

FIXED = ("beta_0.07", "beta_0.05", "beta_0.035")
WHOLE: dict[str, Any] = {"diverged": (), "budget": (), "missing": (), "steps": 64, "prompts": 30}


def row_of(records: StudyRecords, arm: str, metric: str = "eval/gold") -> MatchedKL:
    return next(row for row in matched(records) if (row.arm, row.metric) == (arm, metric))


def with_study(records: StudyRecords, **changed: Any) -> StudyRecords:
    return dataclasses.replace(records, study=records.study.model_copy(update=changed))


def with_ends(records: StudyRecords, ends: dict[str, tuple[float, float]], spread: float = 0.05) -> StudyRecords:
    """The same trials with other ends: arm -> (sqrt KL, gold) around which seeds and prompts lie. An arm with a gold
    reward below the reference's 0 wins none of its prompts."""
    prompts, trials = records.prompts.copy(), records.trials.copy()
    rng = np.random.default_rng(3)
    for (arm, seed), rows in prompts.groupby(["arm", "seed"], sort=False):
        root, gold = ends[str(arm)]
        noise = rng.normal(0, spread, (2, len(rows)))
        prompts.loc[rows.index, "kl"] = np.maximum(root**2 + noise[0], 0.0)
        prompts.loc[rows.index, "policy_gold"] = gold + 0.02 * rng.normal() + noise[1]
        if gold < 0:
            prompts.loc[rows.index, "win"] = 0.0
        mine = (trials["arm"] == arm) & (trials["seed"] == seed)
        trials.loc[mine, "eval/kl_per_sequence"] = prompts.loc[rows.index, "kl"].mean()
    prompts["reference_gold"] = 0.0
    return dataclasses.replace(records, prompts=prompts, trials=trials)


def test_arms_that_differ_in_a_fixed_beta_alone_are_one_method(strengths: StudyRecords, records: StudyRecords) -> None:
    assert base_method(strengths) == (FIXED_BETA, FIXED)
    assert base_method(records) == (FIXED_BETA, tuple(records.arms))
    assert matched(records) == ()
    declared = with_study(strengths, methods={"pair": ("beta_0.05", "tight"), "rest": ("beta_0.07",)})
    assert base_method(declared) == ("pair", ("beta_0.05", "tight"))


def test_a_baseline_whose_beta_moves_is_alone(build: Builder, tmp_path: Path) -> None:
    moving = {"kl.control": "adaptive", "kl.beta": 0.05}
    arms = {"beta_0.05": moving, "beta_0.2": {**moving, "kl.beta": 0.2}}
    built = build(tmp_path, arms=arms, seeds=(0,), **WHOLE)
    found = load_records(built.folder, built.study)
    assert base_method(found) == ("beta_0.05", ("beta_0.05",))
    assert {row.reason for row in matched(found)} == {"few arms"}


def test_an_arm_is_held_against_the_curve_at_its_own_kl(strengths: StudyRecords) -> None:
    row = row_of(strengths, "tight")
    assert row.reason == ""
    assert (row.method, row.arms, row.between) == (FIXED_BETA, FIXED, ("beta_0.05", "beta_0.035"))
    frame = strengths.prompts.groupby(["seed", "arm"])[["kl", "policy_gold", "reference_gold"]].mean()
    wanted = {}
    for seed in strengths.seeds:
        own = frame.loc[seed]
        kl = np.array([0.0, *own.loc[list(FIXED), "kl"]])
        gold = np.array([own.loc["tight", "reference_gold"], *own.loc[list(FIXED), "policy_gold"]])
        wanted[seed] = own.loc["tight", "policy_gold"] - interpolate(kl, gold, float(own.loc["tight", "kl"]))
    assert row.base_value is not None
    assert row.arm_value is not None
    assert row.difference is not None
    assert row.kl.value == pytest.approx(frame.xs("tight", level="arm")["kl"].mean())
    assert row.per_seed == pytest.approx(wanted)
    assert row.difference.value == pytest.approx(np.mean(list(wanted.values())))
    assert row.arm_value.value - row.base_value.value == pytest.approx(row.difference.value)
    assert (row.difference.seeds, row.difference.prompts) == (3, 200)


def with_trials(records: StudyRecords, copied: dict[tuple[str, int], tuple[str, int]]) -> StudyRecords:
    """The same trials, some with the answers of others: trial -> trial."""
    prompts, trials = records.prompts.copy(), records.trials.copy()
    rows = {trial: own.index for trial, own in prompts.groupby(["arm", "seed"])}
    kls = records.trials.set_index(["arm", "seed"])["eval/kl_per_sequence"]
    for trial, other in copied.items():
        for column in ("kl", "policy_gold", "win"):
            prompts.loc[rows[trial], column] = records.prompts.loc[rows[other], column].to_numpy()
        mine = (trials["arm"] == trial[0]) & (trials["seed"] == trial[1])
        trials.loc[mine, "eval/kl_per_sequence"] = kls[other]
    return dataclasses.replace(records, prompts=prompts, trials=trials)


def test_seeds_that_end_outside_of_their_own_curve_are_left_out_and_few_are_not_compared(
    strengths: StudyRecords,
) -> None:
    one = row_of(with_trials(strengths, {("tight", 1): ("loose", 1)}), "tight")
    assert (one.reason, one.left, list(one.per_seed)) == ("", {1: "beyond"}, [0, 2])
    assert one.difference is not None
    assert one.difference.seeds == 2
    two = row_of(with_trials(strengths, {("tight", seed): ("loose", seed) for seed in (1, 2)}), "tight")
    assert (two.reason, two.left, two.difference) == ("few seeds", {1: "beyond", 2: "beyond"}, None)


def test_planned_seeds_without_an_evaluation_are_counted_among_those_left_out(build: Builder, tmp_path: Path) -> None:
    from tests.reports.conftest import STRENGTHS

    for diverged in (1, 3):
        shape = {
            **WHOLE,
            "diverged": tuple(("tight", seed) for seed in range(diverged)),
            "prompts": 200,
            "seeds": tuple(range(5)),
        }
        built = build(tmp_path / str(diverged), arms=STRENGTHS, **shape)
        row = row_of(load_records(built.folder, built.study), "tight")
        assert (row.seeds, row.left) == (5, dict.fromkeys(range(diverged), "not evaluated"))
        assert row.reason == ("" if diverged == 1 else "few seeds")


def test_arms_too_far_apart_are_not_bridged(strengths: StudyRecords) -> None:
    ends = {"beta_0.07": (1.0, 2.5), "beta_0.05": (1.3, 3.1), "beta_0.035": (1.9, 3.9)}
    found = with_ends(strengths, {**ends, "tight": (1.6, 3.5), "tighter": (1.2, 3.0), "loose": (3.4, 4.5)})
    far = row_of(found, "tight")
    assert (far.reason, set(far.left.values())) == ("few seeds", {"far apart"})
    assert row_of(found, "tighter").reason == ""


def test_an_arm_that_is_shown_to_be_worse_than_the_reference_is_no_point_of_the_curve(strengths: StudyRecords) -> None:
    ends = {"beta_0.07": (1.5, 3.4), "beta_0.05": (2.0, 4.0), "beta_0.035": (2.4, -0.5)}
    found = with_ends(strengths, {**ends, "tight": (2.2, 4.1), "tighter": (1.7, 3.7), "loose": (3.0, 4.5)})
    row = row_of(found, "tight")
    assert (row.arms, row.collapsed) == (FIXED[:2], FIXED[2:])
    assert (row.reason, set(row.left.values())) == ("few seeds", {"beyond"})
    assert row_of(found, "tighter").reason == ""
    alone = with_study(found, methods={"two": ("beta_0.05", "beta_0.035")})
    assert row_of(alone, "tight").reason == "few arms"


def test_noise_and_the_smallest_kl_collapse_no_arm(strengths: StudyRecords) -> None:
    """An arm that hardly moves equals the reference: its mean lies below it in half of all studies."""
    ends = {"beta_0.07": (1.5, 3.4), "beta_0.05": (2.0, 4.0), "beta_0.035": (2.4, 4.2)}
    found = with_ends(strengths, {**ends, "tight": (2.2, 4.1), "tighter": (1.7, 3.7), "loose": (3.0, 4.5)})
    prompts = found.prompts.copy()
    own = prompts["arm"] == "beta_0.05"
    prompts.loc[own, "win"] = np.resize([0.0, 1.0, 0.48], own.sum())
    assert prompts.loc[own, "win"].mean() < 0.5
    assert row_of(dataclasses.replace(found, prompts=prompts), "tight").collapsed == ()
    prompts.loc[own, "policy_gold"] = -0.02  # the win rate decides
    prompts.loc[own, "win"] = 0.63
    prompts.loc[prompts["arm"] == "beta_0.07", "win"] = 0.0  # the smallest KL: no maximum lies below it
    row = row_of(dataclasses.replace(found, prompts=prompts), "tight")
    assert (row.arms, row.collapsed) == (FIXED, ())


def test_an_arm_on_the_curve_is_not_distinguished_and_one_above_it_is(strengths: StudyRecords) -> None:
    """Gold is d (3 - d / 2) of d = sqrt(KL): both arms end between two betas, where the chord lies 0.05 lower."""
    on = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.3, 1.8, 2.4), strict=True)}
    ends = {**on, "tight": (2.0, 4.0), "tighter": (1.5, 1.5 * 2.25 + 0.5), "loose": (3.0, 4.5)}
    found = with_ends(strengths, ends)
    assert row_of(found, "tight").outcome == "undecided"
    assert row_of(found, "tighter").outcome == "better"
    above = row_of(found, "tighter").difference
    assert above is not None
    assert above.value == pytest.approx(0.5, abs=0.05)


def test_a_seed_is_compared_with_the_arms_that_it_has(build: Builder, tmp_path: Path) -> None:
    from tests.reports.conftest import STRENGTHS

    lost = (("beta_0.05", 0), ("beta_0.05", 1), ("beta_0.035", 1))
    built = build(tmp_path, arms=STRENGTHS, **{**WHOLE, "missing": lost, "prompts": 200})
    row = row_of(load_records(built.folder, built.study), "tight")
    assert row.left == {0: "far apart", 1: "few arms"}
    assert row.reason == "few seeds"


def test_two_arms_without_a_reference_are_too_few(strengths: StudyRecords) -> None:
    """A chord lies below a concave curve, so an arm on the curve would look better than its method."""
    two = with_study(
        strengths,
        methods={"two": ("beta_0.05", "beta_0.035")},
        objective=strengths.study.objective.model_copy(update={"metric": "eval/length"}),
    )
    assert set(row_of(two, "tight", "eval/length").left.values()) == {"few arms"}
    assert row_of(two, "tight").reason == ""


def test_a_kl_is_not_compared_at_equal_kl(strengths: StudyRecords) -> None:
    objective = strengths.study.objective.model_copy(update={"metric": "eval/kl_per_token"})
    assert metrics(with_study(strengths, objective=objective)) == ["eval/gold"]


def test_records_without_prompts_are_compared_over_seeds(strengths: StudyRecords) -> None:
    """As imported ones are: by where their series ended."""
    rng = np.random.default_rng(0)
    trials = strengths.trials.assign(**{"eval/x": rng.normal(size=len(strengths.trials))})
    objective = strengths.study.objective.model_copy(update={"metric": "eval/x"})
    found = with_study(dataclasses.replace(strengths, trials=trials), objective=objective)
    row = row_of(found, "tight", "eval/x")
    assert row.difference is not None
    assert (row.difference.seeds, row.difference.prompts, row.difference.method) == (3, 0, "student")
    assert isinstance(trials, pd.DataFrame)


def test_of_a_minimised_metric_more_is_worse(strengths: StudyRecords) -> None:
    on = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.3, 1.8, 2.4), strict=True)}
    found = with_ends(strengths, {**on, "tight": (2.0, 4.0), "tighter": (1.5, 1.5 * 2.25 + 0.5), "loose": (3.0, 4.5)})
    assert row_of(found, "tighter").outcome == "better"
    less = found.study.objective.model_copy(update={"metric": "eval/gold", "direction": "minimize"})
    assert row_of(with_study(found, objective=less), "tighter").outcome == "worse"


def test_prompts_without_an_outcome_are_left_out(strengths: StudyRecords) -> None:
    """Imported outcomes can have gaps; hypotheses and equal drift use the prompts that all arms have."""
    on = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.3, 1.8, 2.4), strict=True)}
    found = with_ends(strengths, {**on, "tight": (2.0, 4.0), "tighter": (1.5, 1.5 * 2.25), "loose": (3.0, 4.5)})
    prompts = found.prompts.copy()
    gap = (prompts["arm"] == "beta_0.05") & (prompts["prompt_id"] == prompts["prompt_id"].min())
    prompts.loc[gap, ["policy_gold", "kl"]] = np.nan
    holed = dataclasses.replace(found, prompts=prompts)
    row, tables = row_of(holed, "tight"), shared(holed, "eval/gold", ["tight", "beta_0.05"])
    assert row.difference is not None
    assert row.difference.prompts == 199
    assert tables is not None
    assert {table.shape[1] for table, _ in tables.tables} == {199}


def test_p_is_corrected_over_the_arms_of_a_metric(strengths: StudyRecords) -> None:
    for metric in metrics(strengths):
        rows = [row for row in matched(strengths) if row.metric == metric and not row.reason]
        assert [row.arm for row in rows] == ["tight", "tighter"]
        assert [row.p_holm for row in rows] == pytest.approx(
            two_level.holm([row.p for row in rows if row.p is not None])
        )


def test_what_ends_outside_of_the_method_is_not_extrapolated(strengths: StudyRecords) -> None:
    beyond = row_of(strengths, "loose")
    assert (beyond.reason, set(beyond.left.values())) == ("few seeds", {"beyond"})
    assert beyond.difference is None
    strong = with_study(strengths, methods={"weak": ("beta_0.05", "beta_0.035")}, baseline="beta_0.05")
    assert set(row_of(strong, "tighter").left.values()) == {"below"}
    assert row_of(strong, "tight").reason == ""
