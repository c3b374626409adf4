from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import WHOLE, build, with_study

from reports.findings.hypotheses import Judgement, judge
from reports.findings.matched_kl import FIXED_BETA, MatchedKL, base_method, matched, metrics
from reports.findings.pairs import shared
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.matched_kl import interpolate
from studies.definition.hypotheses import Hypothesis

FIXED = ("beta_0.07", "beta_0.05", "beta_0.035")
SHAPE: dict[str, Any] = {**WHOLE, "steps": 64}
ENDS = {"tight": (2.2, 4.1), "tighter": (1.7, 3.7), "loose": (3.0, 4.5)}


def row_of(records: StudyRecords, arm: str, metric: str = "eval/gold") -> MatchedKL:
    return next(row for row in matched(records) if (row.arm, row.metric) == (arm, metric))


def aiming(records: StudyRecords, metric: str, direction: str = "maximize", **more: Any) -> StudyRecords:
    wanted = {"metric": metric, "direction": direction}
    return with_study(records, objective=records.study.objective.model_copy(update=wanted), **more)


def with_ends(records: StudyRecords, ends: dict[str, tuple[float, float]]) -> StudyRecords:
    """The same trials with other ends: arm -> (sqrt KL, gold) around which seeds and prompts lie. An arm with a gold
    reward below the reference's 0 wins none of its prompts."""
    prompts, trials = records.prompts.copy(), records.trials.copy()
    rng = np.random.default_rng(3)
    for (arm, seed), rows in prompts.groupby(["arm", "seed"], sort=False):
        root, gold = ends[str(arm)]
        noise = rng.normal(0, 0.05, (2, len(rows)))
        prompts.loc[rows.index, "kl"] = np.maximum(root**2 + noise[0], 0.0)
        prompts.loc[rows.index, "policy_gold"] = gold + 0.02 * rng.normal() + noise[1]
        if gold < 0:
            prompts.loc[rows.index, "win"] = 0.0
        mine = (trials["arm"] == arm) & (trials["seed"] == seed)
        trials.loc[mine, "eval/kl_per_sequence"] = prompts.loc[rows.index, "kl"].mean()
    prompts["reference_gold"] = 0.0
    return dataclasses.replace(records, prompts=prompts, trials=trials)


def test_arms_that_differ_in_a_fixed_beta_alone_are_one_method(
    strengths: StudyRecords, records: StudyRecords, tmp_path: Path
) -> None:
    assert base_method(strengths) == (FIXED_BETA, FIXED)
    assert base_method(records) == (FIXED_BETA, tuple(records.arms))
    assert matched(records) == ()
    declared = with_study(strengths, methods={"pair": ("beta_0.05", "tight"), "rest": ("beta_0.07",)})
    assert base_method(declared) == ("pair", ("beta_0.05", "tight"))
    moving = {"kl.control": "adaptive", "kl.beta": 0.05}
    arms = {"beta_0.05": moving, "x": {**moving, "kl.beta": 0.2}}
    found = build(tmp_path, arms=arms, seeds=(0,), prompts=30, **SHAPE).records
    assert base_method(found) == ("beta_0.05", ("beta_0.05",))
    assert {row.reason for row in matched(found)} == {"few arms"}


def test_an_arm_is_held_against_the_curve_at_its_own_kl(strengths: StudyRecords) -> None:
    row = row_of(strengths, "tight")
    assert (row.reason, row.method, row.arms) == ("", FIXED_BETA, FIXED)
    assert row.between == ("beta_0.05", "beta_0.035")
    frame = strengths.prompts.groupby(["seed", "arm"])[["kl", "policy_gold", "reference_gold"]].mean()
    wanted = {}
    for seed in strengths.seeds:
        own = frame.loc[seed]
        kl = np.array([0.0, *own.loc[list(FIXED), "kl"]])
        gold = np.array([own.loc["tight", "reference_gold"], *own.loc[list(FIXED), "policy_gold"]])
        wanted[seed] = own.loc["tight", "policy_gold"] - interpolate(kl, gold, float(own.loc["tight", "kl"]))
    assert row.kl.value == pytest.approx(frame.xs("tight", level="arm")["kl"].mean())
    assert row.per_seed == pytest.approx(wanted)
    assert row.difference.value == pytest.approx(np.mean(list(wanted.values())))
    assert row.arm_value.value - row.base_value.value == pytest.approx(row.difference.value)
    assert (row.difference.seeds, row.difference.prompts) == (3, 200)
    for metric in metrics(strengths):
        rows = [row for row in matched(strengths) if row.metric == metric and not row.reason]
        assert [row.arm for row in rows] == ["tight", "tighter"]
        assert [row.p_holm for row in rows] == two_level.holm([row.p for row in rows])


def test_a_hypothesis_can_ask_for_an_arm_at_equal_kl(strengths: StudyRecords) -> None:
    def asked(records: StudyRecords, arm: str = "tight", **more: Any) -> Judgement:
        content = {"name": "n", "claim": "c", "metric": "eval/gold", "contrast": f"{arm} - beta_0.05", **more}
        one = Hypothesis.model_validate({"at_equal_kl": True, "expect": "higher", **content})
        return judge(with_study(records, hypotheses=(one,)))[0]

    found, row = asked(strengths), row_of(strengths, "tight")
    assert found.steps[0].estimate == row.difference
    assert found.p == pytest.approx(row.p)
    assert found.hypothesis.condition == "eval/gold at equal KL: tight - beta_0.05 > 0"
    assert asked(strengths, at_equal_kl=False).steps[0].estimate != row.difference
    beyond = asked(strengths, "loose")
    assert (beyond.outcome, beyond.reason) == ("NOT TESTED", "too few seeds can be compared at equal KL: 3 beyond")
    early = strengths.trials.copy()
    early.loc[early["arm"] == "tight", ["status", "evaluated"]] = ["missing", False]
    before = asked(dataclasses.replace(strengths, trials=early))
    assert (before.outcome, before.reason) == ("NOT TESTED", "3 of its 12 trials have still to run")
    # The other arms of the curve count as well: one that has yet to run, and one that diverged.
    for status, outcome, words in (
        ("missing", "NOT TESTED", "1 of its 12 trials has still to run"),
        ("diverged", "UNDECIDED", "beta_0.035 seed 1 diverged; the seeds that are left flatter such an arm"),
    ):
        trials = strengths.trials.copy()
        one = (trials["arm"] == "beta_0.035") & (trials["seed"] == 1)
        trials.loc[one, "status"], trials.loc[one, "eval/kl_per_sequence"] = status, np.nan
        judged = asked(dataclasses.replace(strengths, trials=trials))
        assert (judged.outcome, judged.reason) == (outcome, words)


def loosened(records: StudyRecords, *seeds: int) -> StudyRecords:
    """The arm `tight` with the answers of `loose` on these seeds."""
    prompts, trials = records.prompts.copy(), records.trials.copy().set_index(["arm", "seed"])
    rows = {trial: own.index for trial, own in prompts.groupby(["arm", "seed"])}
    for seed in seeds:
        for column in ("kl", "policy_gold", "win"):
            prompts.loc[rows["tight", seed], column] = prompts.loc[rows["loose", seed], column].to_numpy()
        trials.loc[("tight", seed), "eval/kl_per_sequence"] = trials.loc[("loose", seed), "eval/kl_per_sequence"]
    return dataclasses.replace(records, prompts=prompts, trials=trials.reset_index())


def test_seeds_without_a_place_on_their_curve_are_left_out_and_few_are_not_compared(
    strengths: StudyRecords, tmp_path: Path
) -> None:
    one = row_of(loosened(strengths, 1), "tight")
    assert (one.reason, one.left, list(one.per_seed)) == ("", {1: "beyond"}, [0, 2])
    two = row_of(loosened(strengths, 1, 2), "tight")
    assert (two.reason, two.left, two.difference) == ("few seeds", {1: "beyond", 2: "beyond"}, None)
    beyond = row_of(strengths, "loose")
    assert (beyond.reason, set(beyond.left.values()), beyond.difference) == ("few seeds", {"beyond"}, None)
    weak = with_study(strengths, methods={"weak": ("beta_0.05", "beta_0.035")}, baseline="beta_0.05")
    assert set(row_of(weak, "tighter").left.values()) == {"below"}
    lost = (("beta_0.05", 0), ("beta_0.05", 1), ("beta_0.035", 1), ("tight", 2))
    row = row_of(build(tmp_path, arms=strengths.study.arms, **SHAPE | {"missing": lost}).records, "tight")
    assert (row.reason, row.left) == ("few seeds", {0: "far apart", 1: "few arms", 2: "not evaluated"})
    assert row.left_by_reason == {"not evaluated": 1, "far apart": 1, "few arms": 1}


def test_an_arm_that_is_shown_to_be_worse_than_the_reference_is_no_point_of_the_curve(strengths: StudyRecords) -> None:
    found = with_ends(strengths, {"beta_0.07": (1.5, 3.4), "beta_0.05": (2.0, 4.0), "beta_0.035": (2.4, -0.5), **ENDS})
    row = row_of(found, "tight")
    assert (row.arms, row.collapsed) == (FIXED[:2], FIXED[2:])
    assert (row.reason, set(row.left.values())) == ("few seeds", {"beyond"})
    assert row_of(found, "tighter").reason == ""
    assert row_of(with_study(found, methods={"two": ("beta_0.05", "beta_0.035")}), "tight").reason == "few arms"
    # Noise collapses no arm, and the one at the smallest KL is kept: no maximum lies below it.
    prompts = found.prompts.assign(win=0.63)
    noisy = prompts["arm"] == "beta_0.05"
    prompts.loc[noisy, "win"] = np.resize([0.0, 1.0, 0.48], noisy.sum())
    prompts.loc[prompts["arm"] == "beta_0.07", "win"] = 0.0
    row = row_of(dataclasses.replace(found, prompts=prompts), "tight")
    assert (row.arms, row.collapsed) == (FIXED, ())


def test_an_arm_on_the_curve_is_not_distinguished_and_one_above_it_is(strengths: StudyRecords) -> None:
    """Gold is d (3 - d / 2) of d = sqrt(KL); both arms end between two betas, where the chord lies 0.05 lower."""
    ends = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.3, 1.8, 2.4), strict=True)}
    found = with_ends(strengths, ends | {"tight": (2.0, 4.0), "tighter": (1.5, 3.875), "loose": (3.0, 4.5)})
    assert row_of(found, "tight").outcome == "undecided"
    above = row_of(found, "tighter")
    assert (above.outcome, above.difference.value) == ("better", pytest.approx(0.5, abs=0.05))
    assert row_of(aiming(found, "eval/gold", "minimize"), "tighter").outcome == "worse"
    prompts = found.prompts.copy()  # imported outcomes can have gaps
    gap = (prompts["arm"] == "beta_0.05") & (prompts["prompt_id"] == prompts["prompt_id"].min())
    prompts.loc[gap, ["policy_gold", "kl"]] = np.nan
    holed = dataclasses.replace(found, prompts=prompts)
    assert row_of(holed, "tight").difference.prompts == 199
    assert {table.shape[1] for table, _ in shared(holed, "eval/gold", ["tight", "beta_0.05"]).tables} == {199}


def test_what_is_compared_and_how(strengths: StudyRecords) -> None:
    assert metrics(aiming(strengths, "eval/kl_per_token")) == ["eval/gold"], "a KL is not compared at equal KL"
    # A chord lies below a concave curve, so without the reference two arms are too few.
    two = aiming(strengths, "eval/length", methods={"two": ("beta_0.05", "beta_0.035")})
    assert set(row_of(two, "tight", "eval/length").left.values()) == {"few arms"}
    assert row_of(two, "tight").reason == ""
    numbers = np.random.default_rng(0).normal(size=len(strengths.trials))
    once = dataclasses.replace(strengths, trials=strengths.trials.assign(**{"eval/x": numbers}))
    found = row_of(aiming(once, "eval/x"), "tight", "eval/x").difference
    assert (found.seeds, found.prompts, found.method) == (3, 0, "student")
