from __future__ import annotations

import math
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_trial
import light_study
import pytest
from fake_trial import SEARCH
from helpers import wait_until
from hypothesis import given
from hypothesis import strategies as st
from light_study import Write
from rich.console import Console
from typer.testing import CliRunner

import ablate
from pipeline.config.trial import TrialConfig
from pipeline.run.layout import Layout, StudyFolder
from studies.claims.verdicts import of_record
from studies.definition.design import cells
from studies.definition.schema import Study, load_study
from studies.definition.search import Tried, arm, choose, confirmation, load, pareto, violations
from studies.definition.space import Objective
from studies.execution import study as running
from studies.execution.hand import Inline
from studies.execution.study import StudyResult, run_study
from studies.tracking.sync import Synced

STEPS = {"train.steps": 32}
WIN, KL = Objective(metric="eval/win_rate"), Objective(metric="eval/kl_per_token", direction="minimize")

pytestmark = pytest.mark.usefixtures("no_mlflow")


def go(study: Study, layout: Layout, name: str = "inline", jobs: int = 1, **control: Any) -> tuple[StudyResult, str]:
    fake_trial.control(layout, landscape=True, **control)
    return light_study.go(study, layout, name, jobs, **STEPS)


def found(study: Study, layout: Layout) -> dict[str, Any]:
    content = load(study, layout.study(study.name, "tiny"))
    assert content is not None
    return content


@dataclass(frozen=True)
class Whole:
    """A search that was run to its end. Read from it; do not write."""

    study: Study
    layout: Layout
    result: StudyResult
    text: str
    content: dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(SEARCH)
    study, layout = load_study(folder / "small.yaml"), Layout(folder / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "sync", lambda *arguments, **more: Synced(True, 0))
        result, text = go(study, layout)
    return Whole(study, layout, result, text, found(study, layout))


def test_a_search_runs_its_trials_and_confirms_the_best_on_fresh_seeds(whole: Whole) -> None:
    result, text, content, layout = whole.result, whole.text, whole.content, whole.layout
    assert [one["number"] for one in content["trials"]] == list(range(14))
    assert {one["status"] for one in content["trials"]} == {"complete"}
    feasible = [one for one in content["trials"] if one["values"]["eval/kl_per_token"] <= 0.3]
    assert 0 < len(feasible) < 14
    assert [one["number"] for one in content["trials"] if one["feasible"]] == [one["number"] for one in feasible]
    best = sorted(feasible, key=lambda one: -one["values"]["eval/win_rate"])
    assert content["pareto"] == [best[0]["number"]]
    assert [one["number"] for one in content["confirmed"]] == [one["number"] for one in best[:2]]
    assert [one["arm"] for one in content["confirmed"]] == ["confirm-1", "confirm-2"]
    assert {(record.arm, record.seed) for record in result.records} == {
        (name, seed) for name in ("baseline", "confirm-1", "confirm-2") for seed in (10, 11)
    }
    assert result.study.arm_overrides()["confirm-1"] == best[0]["overrides"]
    assert {verdict.arm for verdict in result.verdicts} == {"baseline", "confirm-1", "confirm-2"}
    records = layout.study("small", "tiny").records()
    judged = {record.arm for record in records if of_record(whole.study, result.folder, record)}
    assert judged == {"baseline", "confirm-1", "confirm-2"}, "no claim applies to the search"
    assert "search: 14 trials, " in text
    assert "search-013: eval/win_rate" in text
    assert len(fake_trial.calls(layout)) == 14 + 6


@pytest.mark.slow
def test_hands_side_by_side_come_to_the_same_end(write_study: Write, tmp_path: Path, whole: Whole) -> None:
    study, layout = write_study(SEARCH), Layout(tmp_path / "other")
    _, text = go(study, layout, "processes", 3, sleep=0.01)
    assert found(study, layout) == whole.content
    assert "search-013: eval/win_rate" in text


def test_again_nothing_runs_and_a_lost_file_is_made_again_from_the_records(whole: Whole, tmp_path: Path) -> None:
    study, layout = whole.study, Layout(tmp_path / "copy")
    shutil.copytree(whole.layout.root, layout.root)
    file = layout.study(study.name, "tiny").search_file
    before, written = file.read_text(), file.stat().st_mtime_ns
    _, text = go(study, layout)
    assert "already recorded: 14 of 14 trials of the search" in text
    assert "already recorded: 6 of 6 trials of the confirmation" in text
    assert (file.read_text(), file.stat().st_mtime_ns) == (before, written), "nor is anything made again that is newer"
    file.unlink()
    go(study, layout)
    assert file.read_text() == before
    assert len(fake_trial.calls(layout)) == 14 + 6


def test_two_objectives_give_a_front_and_its_ends_are_confirmed(write_study: Write, layout: Layout) -> None:
    aims = "objectives: [{metric: eval/win_rate}, {metric: eval/kl_per_token, direction: minimize}]\n  trials: 16"
    study = write_study(SEARCH.replace("trials: 14", aims))
    go(study, layout)
    content = found(study, layout)
    values = {one["number"]: one["values"] for one in content["trials"]}
    front = sorted(content["pareto"], key=lambda n: -values[n]["eval/win_rate"])
    assert len(front) > 2
    drift = [values[n]["eval/kl_per_token"] for n in front]
    assert drift == sorted(drift, reverse=True)
    assert [one["number"] for one in content["confirmed"]] == [front[0], front[-1]]


def test_the_search_is_kept_where_optunas_tools_look(whole: Whole) -> None:
    import optuna

    kept = optuna.load_study(
        study_name="small-search", storage=f"sqlite:///{whole.layout.study('small', 'tiny').optuna_file}"
    )
    assert len(kept.trials) == 14
    assert kept.best_trial.number == whole.content["confirmed"][0]["number"]
    assert kept.trials[0].constraints.keys() == {"eval/kl_per_token <= 0.3", "ended"}


def test_sync_brings_the_search_back(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    from ablate import app

    def trials_of(folder: StudyFolder) -> list[tuple[Any, ...]]:
        kept = optuna.load_study(study_name="small-search", storage=f"sqlite:///{folder.optuna_file}")
        return [(one.number, one.state, one.params, one.values, one.constraints) for one in kept.trials]

    layout = Layout(tmp_path / "copy")
    shutil.copytree(whole.layout.root, layout.root)
    folder = layout.study("small", "tiny")
    before = trials_of(folder)
    folder.optuna_file.unlink()
    monkeypatch.setattr("studies.tracking.sync.sync", lambda *arguments, **more: Synced(True, 0))
    done = CliRunner().invoke(app, ["sync", whole.study.source, "--out", str(layout.root)])
    assert done.exit_code == 0, done.output
    assert trials_of(folder) == before
    assert len(before) == 14


def test_the_confirmation_is_a_study_of_its_own(write_study: Write, whole: Whole) -> None:
    folder = whole.layout.study(whole.study.name, "tiny")
    compared = confirmation(whole.study, folder)
    assert (compared.kind, compared.seeds) == ("search", (10, 11))
    assert confirmation(compared, folder) == compared
    assert [cell.arm for cell in cells(compared, None, STEPS)][:3] == ["baseline", "confirm-1", "confirm-2"]
    edited = write_study(SEARCH.replace("max: 0.3", "max: 0.2"))
    assert list(confirmation(edited, folder).arm_overrides()) == ["baseline"], "another search chose the others"


POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=20)


def trials_of(points: list[tuple[int, int, bool]]) -> list[Tried]:
    return [
        Tried(n, arm(n), {"optimiser.lr": n}, "complete", {WIN.metric: float(a), KL.metric: float(b)}, good, 1)
        for n, (a, b, good) in enumerate(points)
    ]


@given(POINTS, st.integers(1, 5))
def test_the_front_is_what_nothing_beats_and_the_best_feasible_trials_are_confirmed(
    points: list[tuple[int, int, bool]], top: int
) -> None:
    trials = trials_of(points)
    front = set(pareto(trials, (WIN, KL)))
    for n, (a, b, good) in enumerate(points):
        beaten = any(c >= a and d <= b and (c, d) != (a, b) for c, d, other in points if other)
        assert (n in front) == (good and not beaten)
    able = [one for one in trials[1:] if one.feasible]  # trial 0 has the baseline's settings
    for aims in ((WIN,), (WIN, KL)):
        chosen = choose(trials, aims, top, trials[0].overrides if trials else {})
        assert len({one.number for one in chosen}) == len(chosen) == min(top, len(able))
        assert all(one in able for one in chosen)
        if aims == (WIN,):
            best = sorted((one.values[WIN.metric] for one in able), reverse=True)[:top]
            assert [one.values[WIN.metric] for one in chosen] == best


@pytest.mark.parametrize(
    ("status", "kl", "broken"),
    [
        ("complete", 0.3, 0.0),
        ("complete", 0.4, pytest.approx(0.1)),
        ("complete", None, math.inf),
        ("pruned", 0.1, 1e3),
        ("diverged", 0.1, math.inf),
    ],
)
def test_what_makes_a_trial_infeasible(write_study: Write, status: str, kl: float | None, broken: float) -> None:
    summary = {"eval/win_rate": 0.5} | ({} if kl is None else {"eval/kl_per_token": kl})
    assert max(0.0, *violations(write_study(SEARCH), status, summary).values()) == broken


def test_the_confirmation_has_other_prompts_and_other_noise_than_the_search(whole: Whole) -> None:
    """A winner by luck on some prompts would be judged on these again, with fresh training seeds alone."""
    records = whole.layout.study("small", "tiny").records()
    searched, confirmed = ([one for one in records if one.arm.startswith("search-") == kind] for kind in (True, False))
    first, second = (TrialConfig.model_validate(part[0].config).evaluate for part in (searched, confirmed))
    assert (second.first_prompt, second.prompts) == (first.first_prompt + first.prompts, first.prompts)
    assert second.seed != first.seed
    keys = [{one.stages["reference"].key for one in part} for part in (searched, confirmed)]
    assert [len(found) for found in keys] == [1, 1], "one set of reference answers each: comparisons are paired"
    assert keys[0] != keys[1]


TRAINED = """
question: Which beta wins most often within a limit on the drift?
hypothesis: A small one.
refuted_if: A large one wins more often.
profile: smoke
seeds: [0]
search:
  space:
    kl.beta: {low: 0.01, high: 1.0, log: true}
    optimiser.lr: {values: [1.0e-2, 1.0e-3]}
  trials: 6
  parallel: 2
  constraints: [{metric: eval/kl_per_token, max: 0.5}]
  prune: {metric: objective/kl_per_token, above: 1.0}
  confirm: {top: 1, seeds: [10]}
falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.01, before_step: 32,
     stop: true, arms: ["confirm-*"]}
"""


@pytest.mark.slow
def test_a_search_that_trains_is_killed_resumed_and_confirmed(tmp_path: Path) -> None:
    for name in ("killed", "whole"):
        (tmp_path / f"{name}.yaml").write_text(TRAINED)
    layout = Layout(tmp_path / "out")
    command = [sys.executable, str(Path(ablate.__file__)), "study", str(tmp_path / "killed.yaml"), "--jobs", "2"]
    command += ["--out", str(layout.root)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    folder = layout.study("killed", "smoke")
    wait_until(lambda: folder.search_file.exists() or driver.poll() is not None, 240)
    driver.kill()
    driver.communicate()
    assert (early := {record.arm: record.finished for record in folder.records()})

    again = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert {arm: folder.record(arm, 0).finished for arm in early} == early  # type: ignore[union-attr]
    assert "claim drift FALSIFIED" in again.stdout
    assert (folder.report / "index.html").exists()

    whole = load_study(tmp_path / "whole.yaml")  # its trials are in the store; the proposals are made anew
    run_study(whole, layout, None, {}, Inline, 1, Console(quiet=True))
    content = load(load_study(tmp_path / "killed.yaml"), folder)
    assert content is not None
    assert content == load(whole, layout.study("whole", "smoke"))
    assert {one["status"] for one in content["trials"]} == {"complete", "pruned"}
    for one in content["trials"]:
        assert one["feasible"] == (one["status"] == "complete" and one["values"]["eval/kl_per_token"] <= 0.5)
        assert (one["steps"] < 32) == (one["status"] == "pruned")
        assert "eval/win_rate" in one["values"], "a pruned trial is evaluated as well"
