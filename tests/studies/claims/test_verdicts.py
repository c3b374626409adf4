from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import fake_trial
import numpy as np
import pandas as pd
import pytest
from helpers import publish, republish
from light_study import Write, go, record_of

from pipeline.intervals import student
from pipeline.run.layout import Layout, StageRef, StudyFolder, TrialRecord
from studies.claims.falsifiers import Verdict
from studies.claims.verdicts import evidence, of_record, stages_read, verdicts
from studies.definition.design import cells
from studies.definition.schema import Study

KL = "objective/kl_per_token"
HEAD = """
question: Does it compare?
baseline: base
seeds: [0, 1]
arms:
  base: {kl.beta: 0.05}
  same: {kl.beta: 0.06}
  other: {kl.beta: 0.2}
falsifiers:
"""
RELATIVE = f"""
  - {{name: further, claim: no further, metric: {KL}, op: ">", threshold: 0.0, before_step: 48, relative_to: baseline}}
"""
ABSOLUTE = RELATIVE.replace(", relative_to: baseline", "").replace("threshold: 0.0", "threshold: 1.0")
MEAN = RELATIVE.replace("threshold: 0.0", "threshold: 0.0, aggregation: mean")
WINS = """
  - {name: wins, claim: it wins, metric: eval/win_rate, op: "<", threshold: 0.55}
"""
LOW = WINS.replace("threshold: 0.55", "threshold: 0.5, bound: low")
BETTER = WINS.replace("threshold: 0.55", "threshold: 0.0, relative_to: baseline")
SURELY = WINS.replace("threshold: 0.55", "threshold: 0.0, relative_to: baseline, bound: low")


def folder_of(layout: Layout) -> StudyFolder:
    return layout.study("small", "tiny")


def series(level: float) -> dict[int, float]:
    return {0: 0.0, 16: level, 32: 2 * level}


def wins(rate: float, n: int = 40) -> list[float]:
    return [1.0 if index < round(rate * n) else 0.0 for index in range(n)]


def leave(
    layout: Layout,
    study: Study,
    arm: str,
    seed: int,
    records: Mapping[int, float],
    won: list[float] | None = None,
    **changes: Any,
) -> TrialRecord:
    """A trial that has ended, with these records of a series and these outcomes by prompt."""
    cell = next(cell for cell in cells(study) if (cell.arm, cell.seed) == (arm, seed))
    stages = {}
    tables = {"train": ("metrics", pd.DataFrame({"step": list(records), KL: list(records.values())}))}
    if won is not None:
        rows = pd.DataFrame({"prompt_id": range(len(won)), "win": won})
        tables["evaluate"] = ("prompts", rows)
    for stage, (name, table) in tables.items():
        path = layout.store / stage / f"{arm}{seed}"
        path.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path / f"{name}.parquet", index=False)
        stages[stage] = StageRef(key=f"{arm}{seed}", path=f"store/{stage}/{arm}{seed}", digest=publish(path))
    summary = {} if won is None else {"eval/win_rate": float(np.mean(won))}
    own: dict[str, Any] = {"config": cell.config.model_dump(mode="json"), "config_digest": cell.digest}
    record = record_of(arm, seed, **{**own, "steps": 48, "stages": stages, "summary": summary, **changes})
    folder_of(layout).write(record)
    return record


def judged(layout: Layout, study: Study, **options: Any) -> dict[tuple[str, int], Verdict]:
    found = verdicts(study, folder_of(layout), cells(study), **options)
    return {(one.arm, one.seed): one for one in found}


@pytest.fixture
def recorded(write_study: Write, layout: Layout) -> Callable[[str], Study]:
    """Three arms on two seeds: `same` is the baseline again, `other` drifts further and wins more often."""

    def record(claims: str) -> Study:
        study = write_study(HEAD + claims)
        for seed in (0, 1):
            for arm, level, rate in (("base", 0.1, 0.6), ("same", 0.1, 0.6), ("other", 0.15, 0.8)):
                leave(layout, study, arm, seed, series(level * (1 + seed)), wins(rate - 0.1 * seed))
        return study

    return record


@pytest.mark.parametrize("form", [RELATIVE, MEAN, BETTER, SURELY])
def test_an_arm_that_is_the_baseline_again_survives(
    recorded: Callable[[str], Study], layout: Layout, form: str
) -> None:
    found = judged(layout, recorded(form))
    assert {arm for arm, _ in found} == {"same", "other"}, "the baseline is not compared with itself"
    assert {found["same", seed].outcome for seed in (0, 1)} == {"SURVIVED"}
    assert {found["same", seed].value for seed in (0, 1)} == {0.0}


def test_each_seed_is_compared_with_the_baseline_of_that_seed(recorded: Callable[[str], Study], layout: Layout) -> None:
    found = judged(layout, recorded(RELATIVE))
    first, second = found["other", 0], found["other", 1]
    assert (first.step, first.value, first.run) == (16, pytest.approx(0.05), "other0")
    assert (first.arm_value, first.baseline_value) == (0.15, 0.1)
    assert (second.arm_value, second.baseline_value) == (0.3, 0.2)
    assert first.reason == "difference 0.05 at step 16; 0.15 against the baseline's 0.1"
    rate = judged(layout, recorded(BETTER.replace('"<"', '">"')))["other", 1]
    assert (rate.arm_value, rate.baseline_value) == (0.7, 0.5)


@pytest.mark.parametrize("form", [RELATIVE, MEAN, ABSOLUTE])
def test_no_claim_survives_on_the_steps_that_the_target_kl_let_pass(
    recorded: Callable[[str], Study], layout: Layout, form: str
) -> None:
    """Each of 4 updates of 16 steps took 2, and then `first` more; without the column all that were planned."""
    study = recorded(form.replace(KL, "policy/approxkl").replace("before_step: 48", "before_step: 64"))
    for arm, taken, first, outcome in (
        ("base", None, 0, "SURVIVED"),
        ("same", [2] * 4, 3, "NOT TESTED"),
        ("same", [16, 16, 16, 14], 63, "NOT TESTED"),
        ("same", [16, 16, 16, 15], 64, "SURVIVED"),  # the claim covers the steps before 64
    ):
        steps = range(1, 65)
        table = pd.DataFrame({"step": steps, "policy/approxkl": 0.01})
        if taken is not None:
            left = [taken[(step - 1) // 16] <= (step - 1) % 16 for step in steps]
            table.loc[left, "policy/approxkl"] = np.nan
            table.loc[table.step % 16 == 0, "policy/update_steps"] = taken
        record = leave(layout, study, arm, 0, {}, steps=64 if taken is None else sum(taken))
        path = layout.root / record.stages["train"].path
        table.to_parquet(path / "metrics.parquet", index=False)
        republish(folder_of(layout), path)
        if arm != "base":
            found = judged(layout, study)[arm, 0]
            assert (found.outcome, f"left out step {first}" in found.reason) == (outcome, outcome == "NOT TESTED")
            assert found.n in (sum(taken or ()), sum(taken or ()) - 1)


def test_the_bound_of_an_evaluation_and_of_its_difference(recorded: Callable[[str], Study], layout: Layout) -> None:
    found = judged(layout, recorded(LOW))
    assert [found[arm, 0].outcome for arm in ("base", "other")] == ["FALSIFIED", "SURVIVED"]
    assert found["base", 0].run == "base0"
    value, low, high = student(np.subtract(wins(0.8), wins(0.6)))
    better = judged(layout, recorded(SURELY))["other", 0]
    assert (better.outcome, better.interval, value) == ("SURVIVED", pytest.approx((low, high)), pytest.approx(0.2))
    assert better.value == pytest.approx(low)


def test_what_is_missing_is_not_tested(write_study: Write, layout: Layout) -> None:
    study = write_study(HEAD + RELATIVE + BETTER)
    folder, plan = folder_of(layout), cells(study)

    def why() -> str:
        found = [one for one in verdicts(study, folder, plan) if (one.arm, one.seed) == ("other", 0)]
        assert {one.outcome for one in found} == {"NOT TESTED"}
        (reason,) = {one.reason for one in found}
        return reason

    assert why() == "no record; the trial has not run"
    leave(layout, study, "other", 0, series(0.1), wins(0.6))
    leave(layout, study, "base", 1, series(0.1), wins(0.6))
    assert why() == "the baseline has no record with seed 0", "another seed is no counterpart"
    leave(layout, study, "base", 0, series(0.0), wins(0.1), config_digest="0123")
    assert why() == "the baseline's record with seed 0 is of another configuration; run the study again"
    leave(layout, study, "base", 0, {}, None, status="failed", reason="killed")
    assert why() == "the baseline's trial failed: killed"


@pytest.mark.parametrize(
    ("left", "outcome", "reason"),
    [
        ({"summary": {"eval/gold": 1.0}}, "NOT TESTED", "the evaluation has no eval/win_rate"),
        ({"summary": {"eval/win_rate": 0.6}}, "NOT TESTED", "no interval: the trial left no outcomes by prompt of"),
        ({"status": "budget", "steps": 32, "won": wins(0.9)}, "SURVIVED", "; a cap ended the trial after 32 gradient"),
    ],
)
def test_an_evaluation_that_is_not_there_is_not_tested(
    write_study: Write, layout: Layout, left: dict[str, Any], outcome: str, reason: str
) -> None:
    study = write_study(HEAD + LOW)
    leave(layout, study, "base", 0, series(0.1), **left)
    found = judged(layout, study)["base", 0]
    assert (found.outcome, reason in found.reason) == (outcome, True)


def test_lost_results_matter_only_to_claims_that_read_them(recorded: Callable[[str], Study], layout: Layout) -> None:
    study = recorded(RELATIVE)
    assert stages_read(study.falsifiers) == ["train"]
    assert {record.arm for record in evidence(study, folder_of(layout), cells(study))} == {"base", "same", "other"}
    shutil.rmtree(layout.store / "train" / "base0")
    found = judged(layout, study)
    assert (found["other", 0].outcome, found["other", 1].outcome) == ("NOT TESTED", "FALSIFIED")
    record = folder_of(layout).record("other", 0)
    assert record is not None
    assert [one.outcome for one in of_record(study, folder_of(layout), record, cells(study))] == ["NOT TESTED"]
    assert stages_read(recorded(WINS).falsifiers) == [], "an estimate is in the record"
    assert stages_read(recorded(WINS + SURELY.replace("name: wins", "name: b")).falsifiers) == ["evaluate"]


STUDY = (
    fake_trial.STUDY.partition("falsifiers:")[0].replace("baseline: weak", "baseline: strong")
    + """falsifiers:
  - {name: further, claim: no further, metric: objective/kl_per_token, op: ">", threshold: 0.1, before_step: 60,
     relative_to: baseline}
  - {name: wins, claim: it wins, metric: eval/win_rate, op: "<", threshold: 0.7}
"""
)


@pytest.mark.usefixtures("no_mlflow")
@pytest.mark.parametrize("executor", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_running_study_shows_the_verdicts_of_its_records(write_study: Write, layout: Layout, executor: str) -> None:
    """A claim on `weak` against `strong`, which runs after it, is judged at the end."""
    result, text = go(write_study(STUDY), layout, executor)
    by_claim = {(one.name, one.arm, one.seed): one for one in result.verdicts}
    assert {one.outcome for key, one in by_claim.items() if key[0] == "wins"} == {"FALSIFIED"}
    assert text.count("weak seed 0: claim wins FALSIFIED, 0.6\n") == 1
    assert {key for key in by_claim if key[0] == "further"} == {("further", "weak", 0), ("further", "weak", 1)}
    fallen = by_claim["further", "weak", 0]
    assert (fallen.outcome, fallen.step) == ("FALSIFIED", 32)
    again, text = go(write_study(STUDY), layout, executor)
    assert again.verdicts == result.verdicts
    assert "FALSIFIED" not in text, "what was recorded is not announced again"


STOP = (
    fake_trial.STUDY.partition("falsifiers:")[0]
    + """falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.2, before_step: 60,
     stop: true, arms: [weak]}
  - {name: calm, claim: it rests, metric: policy/entropy, op: "<", threshold: 0.0, before_step: 60}
"""
)


@pytest.mark.usefixtures("no_mlflow")
@pytest.mark.parametrize(
    ("executor", "trouble"), [("inline", {}), pytest.param("processes", {"kill": 1}, marks=pytest.mark.slow)]
)
def test_a_trial_that_breaks_a_claim_ends_at_once_is_evaluated_and_counts(
    write_study: Write, layout: Layout, executor: str, trouble: dict[str, int]
) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, **{what: {"0.01/0": n} for what, n in trouble.items()})
    result, text = go(write_study(STOP), layout, executor)
    by_arm = {record.arm: record for record in result.records if record.seed == 0}
    weak, strong = by_arm["weak"], by_arm["strong"]
    assert (weak.status, weak.steps) == ("pruned", 48)
    assert weak.reason == f"stopped by rule: {KL} = 0.2909 > 0.2 at step 32"
    assert weak.summary["eval/win_rate"] == 0.6, "it is evaluated as it was when it stopped"
    assert (strong.status, strong.steps) == ("complete", 64)
    found = {(one.arm, one.name): one for one in result.verdicts if one.seed == 0}
    drift = found["weak", "drift"]
    assert (drift.outcome, drift.evidence) == ("FALSIFIED", ((32, pytest.approx(0.2909, abs=1e-4)),))
    assert drift.run == weak.stages["train"].key
    assert found["weak", "calm"].reason == "the run came to 48 of 60 gradient steps"
    assert ("strong", "drift") not in found
    assert found["strong", "calm"].outcome == "SURVIVED"
    assert text.count("weak seed 0: claim drift FALSIFIED, 0.2909 at step 32") == 1


@pytest.mark.usefixtures("no_mlflow")
def test_stopping_is_part_of_what_a_trial_is(write_study: Write, layout: Layout) -> None:
    """Only the arms of the rule run again without it; a claim in other words is the same rule."""
    go(write_study(STOP), layout)
    assert len(fake_trial.calls(layout)) == 4
    result, _ = go(write_study(STOP.replace("stop: true", "stop: false")), layout)
    assert sorted(fake_trial.calls(layout)[4:]) == ["0.01/0", "0.01/1"]
    assert {record.status for record in result.records} == {"complete"}
    go(write_study(STOP.replace("claim: it stays", "claim: it is calm").replace("name: drift", "name: other")), layout)
    assert len(fake_trial.calls(layout)) == 6
