"""Arms against the baseline's method at equal drift: which are compared, with what, and what comes out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from reports.findings.findings import analyse
from reports.findings.matched_kl import FIXED_BETA, MatchedKL, base_method, matched, method_curve, metrics
from reports.findings.pairs import tables_of
from reports.records.load import StudyRecords, load_records
from reports.statistics import two_level
from reports.statistics.matched_kl import interpolate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.conftest import Builder

FIXED = ("beta_0.2", "beta_0.05", "beta_0.01")
WHOLE: dict[str, Any] = {"diverged": (), "budget": (), "missing": (), "steps": 64, "prompts": 30}


def row_of(records: StudyRecords, arm: str, metric: str = "eval/gold") -> MatchedKL:
    return next(row for row in matched(records) if (row.arm, row.metric) == (arm, metric))


def with_study(records: StudyRecords, **changed: Any) -> StudyRecords:
    return dataclasses.replace(records, study=records.study.model_copy(update=changed))


def with_ends(records: StudyRecords, ends: dict[str, tuple[float, float]], spread: float = 0.05) -> StudyRecords:
    """The same trials with other ends: arm -> (sqrt KL, gold) around which seeds and prompts lie."""
    prompts, trials = records.prompts.copy(), records.trials.copy()
    rng = np.random.default_rng(3)
    for (arm, seed), rows in prompts.groupby(["arm", "seed"], sort=False):
        root, gold = ends[str(arm)]
        noise = rng.normal(0, spread, (2, len(rows)))
        prompts.loc[rows.index, "kl"] = np.maximum(root**2 + noise[0], 0.0)
        prompts.loc[rows.index, "policy_gold"] = gold + 0.02 * rng.normal() + noise[1]
        mine = (trials["arm"] == arm) & (trials["seed"] == seed)
        trials.loc[mine, "eval/kl_per_sequence"] = prompts.loc[rows.index, "kl"].mean()
    prompts["reference_gold"] = 0.0
    return dataclasses.replace(records, prompts=prompts, trials=trials)


def test_arms_that_differ_in_a_fixed_beta_alone_are_one_method(strengths: StudyRecords, records: StudyRecords) -> None:
    assert base_method(strengths) == (FIXED_BETA, FIXED)
    assert base_method(records) == (FIXED_BETA, tuple(records.arms))
    assert matched(records) == ()
    declared = with_study(strengths, methods={"pair": ("beta_0.05", "tight"), "rest": ("beta_0.2",)})
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
    assert (row.method, row.arms, row.between) == (FIXED_BETA, FIXED, ("beta_0.05", "beta_0.01"))
    frame = strengths.prompts.groupby("arm")[["kl", "policy_gold", "reference_gold"]].mean()
    assert row.kl.value == pytest.approx(frame.loc["tight", "kl"])
    kl, gold = (
        [0.0, *frame.loc[list(FIXED), "kl"]],
        [frame["reference_gold"].iloc[0], *frame.loc[list(FIXED), "policy_gold"]],
    )
    wanted = interpolate(np.array(kl), np.array(gold), float(frame.loc["tight", "kl"]))
    assert row.base_value is not None
    assert row.arm_value is not None
    assert row.difference is not None
    assert row.base_value.value == pytest.approx(wanted)
    assert row.difference.value == pytest.approx(frame.loc["tight", "policy_gold"] - wanted)
    assert (row.difference.seeds, row.difference.prompts) == (3, 200)
    assert row.per_seed is not None
    assert np.mean(list(row.per_seed.values())) == pytest.approx(row.difference.value)


def test_p_is_corrected_over_the_arms_of_a_metric(strengths: StudyRecords) -> None:
    for metric in metrics(strengths):
        rows = [row for row in matched(strengths) if row.metric == metric and not row.reason]
        assert [row.arm for row in rows] == ["tight", "tighter"]
        assert [row.p_holm for row in rows] == pytest.approx(
            two_level.holm([row.p for row in rows if row.p is not None])
        )


def test_an_arm_on_the_curve_is_not_distinguished_and_one_above_it_is(strengths: StudyRecords) -> None:
    """Gold is d (3 - d / 2) of d = sqrt(KL): both arms end between two betas, where the chord lies 0.05 lower."""
    on = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.0, 1.7, 2.4), strict=True)}
    ends = {**on, "tight": (2.0, 4.0), "tighter": (1.4, 1.4 * 2.3 + 0.5), "loose": (3.0, 4.5)}
    found = with_ends(strengths, ends)
    assert row_of(found, "tight").outcome == "undecided"
    assert row_of(found, "tighter").outcome == "better"
    above = row_of(found, "tighter").difference
    assert above is not None
    assert above.value == pytest.approx(0.5, abs=0.05)


def test_what_ends_outside_of_the_method_is_not_extrapolated(strengths: StudyRecords) -> None:
    beyond = row_of(strengths, "loose")
    assert beyond.reason == "beyond"
    assert beyond.difference is None
    assert beyond.kl.value > beyond.range[1]
    strong = with_study(strengths, methods={"weak": ("beta_0.05", "beta_0.01")}, baseline="beta_0.05")
    assert row_of(strong, "tighter").reason == "below"
    assert row_of(strong, "tight").reason == ""


def test_a_method_of_one_arm_compares_nothing(strengths: StudyRecords) -> None:
    alone = with_study(strengths, methods={"only": ("beta_0.05",)})
    rows = matched(alone)
    assert {row.reason for row in rows} == {"few arms"}
    assert {row.arm for row in rows} == set(alone.arms) - {"beta_0.05"}
    assert all(row.p_holm is None and row.outcome == "not estimable" for row in rows)


def test_only_seeds_that_the_neighbours_share_are_compared(build: Builder, tmp_path: Path) -> None:
    from tests.reports.conftest import STRENGTHS

    lost = (("beta_0.05", 0), ("beta_0.2", 1), ("tight", 2))
    built = build(tmp_path, arms=STRENGTHS, **{**WHOLE, "missing": lost})
    found = load_records(built.folder, built.study)
    row = row_of(found, "tight")
    assert list(row.per_seed or {}) == [1]  # beta_0.2 is no neighbour: its lost seed costs only the bend that it gives
    nothing = build(tmp_path / "b", arms=STRENGTHS, **{**WHOLE, "missing": (*lost, ("tight", 1))})
    assert row_of(load_records(nothing.folder, nothing.study), "tight").reason == "no shared seed"


def test_two_arms_without_a_reference_are_too_few(strengths: StudyRecords) -> None:
    """A chord lies below a concave curve, so an arm on the curve would look better than its method."""
    two = with_study(
        strengths,
        methods={"two": ("beta_0.05", "beta_0.01")},
        objective=strengths.study.objective.model_copy(update={"metric": "eval/length"}),
    )
    assert row_of(two, "tight", "eval/length").reason == "few arms"
    assert row_of(two, "tight").reason == ""


def test_a_kl_is_not_compared_at_equal_kl(strengths: StudyRecords) -> None:
    objective = strengths.study.objective.model_copy(update={"metric": "eval/kl_per_token"})
    assert metrics(with_study(strengths, objective=objective)) == ["eval/gold"]


def test_the_curve_that_is_drawn_passes_through_the_ends(strengths: StudyRecords) -> None:
    found = analyse(strengths)
    curve = method_curve(strengths, "eval/gold")
    assert curve is not None
    first, last = (found.arm(arm).estimates for arm in (FIXED[0], FIXED[-1]))
    assert curve.kl[[0, -1]] == pytest.approx([first["eval/kl_per_sequence"].value, last["eval/kl_per_sequence"].value])
    assert curve.estimates[0].value == pytest.approx(first["eval/gold"].value)
    assert curve.estimates[-1].value == pytest.approx(last["eval/gold"].value)
    assert method_curve(with_study(strengths, methods={"only": ("beta_0.05",)}), "eval/gold") is None


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
    on = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.0, 1.7, 2.4), strict=True)}
    found = with_ends(strengths, {**on, "tight": (2.0, 4.0), "tighter": (1.4, 1.4 * 2.3 + 0.5), "loose": (3.0, 4.5)})
    assert row_of(found, "tighter").outcome == "better"
    less = found.study.objective.model_copy(update={"metric": "eval/gold", "direction": "minimize"})
    assert row_of(with_study(found, objective=less), "tighter").outcome == "worse"


def test_prompts_without_an_outcome_are_left_out(strengths: StudyRecords) -> None:
    """Imported outcomes can have gaps; hypotheses and equal drift use the prompts that all arms have."""
    on = {arm: (d, d * (3 - d / 2)) for arm, d in zip(FIXED, (1.0, 1.7, 2.4), strict=True)}
    found = with_ends(strengths, {**on, "tight": (2.0, 4.0), "tighter": (1.4, 1.4 * 2.3), "loose": (3.0, 4.5)})
    prompts = found.prompts.copy()
    gap = (prompts["arm"] == "beta_0.05") & (prompts["prompt_id"] == prompts["prompt_id"].min())
    prompts.loc[gap, ["policy_gold", "kl"]] = np.nan
    holed = dataclasses.replace(found, prompts=prompts)
    row, tables = row_of(holed, "tight"), tables_of(holed, "eval/gold", ["tight", "beta_0.05"])
    assert row.difference is not None
    assert row.difference.prompts == 199
    assert tables is not None
    assert {table.shape[1] for table, _ in tables} == {199}
