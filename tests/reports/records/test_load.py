from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import trl_logs
from helpers import write_sealed
from synthetic import Built, build

from pipeline.errors import Damaged, Gone, UserError
from pipeline.run.layout import Layout, StudyFolder
from reports.findings.findings import analyse
from reports.pages.report import render_report
from reports.records.load import StudyRecords, find_study, load_records, load_search
from studies.definition.schema import Study, load_study
from studies.importing.run import import_folder

Change = Callable[[pd.DataFrame], pd.DataFrame]
BASE = ("beta_0.05", 0)
PROMPTS, CURVES = ("evaluate", "prompts.parquet"), ("train", "metrics.parquet")


@pytest.fixture
def small(tmp_path: Path) -> Built:
    return build(tmp_path, seeds=(0,), prompts=4, steps=64)


def of_trial(frame: pd.DataFrame, arm: str, seed: int) -> pd.DataFrame:
    return frame[(frame["arm"] == arm) & (frame["seed"] == seed)]


def test_every_planned_trial_has_a_row_and_a_status(records: StudyRecords) -> None:
    assert records.counts() == {"complete": 9, "budget": 1, "diverged": 1, "missing": 1}
    assert records.counts("beta_0") == {"complete": 2, "diverged": 1}
    assert [records.evaluated(arm) for arm in records.arms] == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    found = {entry["stage"]: entry for entry in records.upstream}
    assert (found["sft"]["summary"]["perplexity"], found["sft"]["trials"]) == (8.31, 11)


def test_frames_equal_the_files(demo: Built, records: StudyRecords) -> None:
    table = pd.read_parquet(demo.table(*BASE, *PROMPTS))
    mine = of_trial(records.prompts, *BASE)
    np.testing.assert_array_equal(mine[["kl", "win", "decided"]], table[["kl", "win", "decided"]])
    curve = pd.read_parquet(demo.table(*BASE, *CURVES))
    np.testing.assert_array_equal(of_trial(records.curves, *BASE)[curve.columns], curve)
    assert len(records.samples) == 10 * 16
    lost = of_trial(records.curves, "beta_0", 2)
    assert math.isnan(lost["policy/entropy"].iloc[-1]), "infinity is no recorded value"
    found = records.series("beta_0", "policy/entropy")
    for seed, (steps, values) in found.items():
        rows = of_trial(records.curves, "beta_0", seed).dropna(subset=["policy/entropy"])
        np.testing.assert_array_equal(np.stack([steps, values]), rows[["step", "policy/entropy"]].to_numpy().T)
    assert (list(found), records.series("beta_0", "policy/kl_loss"), records.update_length) == ([0, 1, 2], {}, 16)


def test_answers_are_one_row_a_seed_and_one_column_a_prompt(demo: Built, records: StudyRecords, small: Built) -> None:
    shared = records.shared_prompts([("beta_0", 0), BASE], ["kl"])
    np.testing.assert_array_equal(shared, np.arange(200))
    table = pd.read_parquet(demo.table(*BASE, *PROMPTS))
    backwards = records.answers("beta_0.05", "kl", [2, 0], shared[::-1])
    np.testing.assert_array_equal(backwards[1], table["kl"].to_numpy()[::-1])
    small.rewrite(small.table(*BASE, *PROMPTS), lambda table: table.iloc[[3, 1]])
    some = small.read()
    assert some.shared_prompts([BASE, ("beta_0.01", 0)], ["kl"]).tolist() == [1, 3]
    assert np.isnan(some.answers("beta_0.05", "kl", [0], pd.Index([0, 1]))).tolist() == [[True, False]]


def test_of_two_rows_at_one_step_the_last_counts(small: Built) -> None:
    path = small.table(*BASE, *CURVES)
    table = pd.read_parquet(path)
    last = table.tail(1).assign(**{"policy/entropy": 9.0})
    small.rewrite(path, lambda table: pd.concat([table.iloc[::-1], last]))
    mine = of_trial(small.read().curves, *BASE)
    assert mine["step"].tolist() == table["step"].tolist()
    assert mine["policy/entropy"].iloc[-1] == 9.0


def test_a_study_that_was_never_run(demo: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = demo.study.source
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(UserError, match=rf"has not been run on profile 'tiny'.*make study STUDY={source}$"):
        find_study(Layout.at(tmp_path), source)
    with pytest.raises(UserError, match=r"has been run on: tiny; .*: make study STUDY=.* PROFILE=smoke"):
        find_study(demo.layout, source, "smoke")


@pytest.mark.parametrize(
    ("where", "change", "words"),
    [
        (PROMPTS, lambda table: table.drop(columns=["tie", "agree"]), "no column tie, agree"),
        (CURVES, lambda table: table.drop(columns="step"), "no column step"),
        (CURVES, None, "."),
        (None, None, "."),
    ],
)
def test_what_is_damaged_is_one_line_with_its_file(small: Built, where: Any, change: Change | None, words: str) -> None:
    path = small.table(*BASE, *where) if where else small.folder.trial_file(*BASE)
    if change is None:
        path.write_bytes(path.read_bytes()[:100])
    else:
        small.rewrite(path, change)
    with pytest.raises(Damaged, match=words) as caught:
        small.read()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_artifact_and_one_outside_are_refused(small: Built) -> None:
    shutil.rmtree(small.table(*BASE, *CURVES).parent)
    with pytest.raises(Gone, match=r"1 of \d recorded trials have lost results \(beta_0\.05 seed 0;"):
        small.read()
    record = small.folder.record(*BASE)
    outside = record.stages["train"].model_copy(update={"path": "../../../etc"})
    small.folder.write(record.model_copy(update={"stages": {**record.stages, "train": outside}}))
    with pytest.raises(Damaged, match="leaves the output folder"):
        small.read()


def test_stale_and_dropped_trials_are_reported_and_left_out(tmp_path: Path, small: Built) -> None:
    records = build(tmp_path / "stale", prompts=4, steps=64, stale=(("beta_0.05", 1),)).records
    assert records.counts("beta_0.05") == {"complete": 2, "stale": 1}
    assert records.evaluated("beta_0.05") == [0, 2]
    assert any("beta_0.05 seed 1" in note for note in records.notes)
    fewer = load_records(small.folder, small.study.model_copy(update={"arms": {"beta_0.05": {"kl.beta": 0.05}}}))
    assert len(fewer.trials) == 1
    assert any("beta_0.2 seed 0" in note for note in fewer.notes)
    write_sealed(small.folder.study_file, {**small.folder.started(), "overrides": {"optimiser.lr": 0.002}})
    with pytest.raises(UserError, match="all 4 records were run with another configuration"):
        small.read()


STUDY = """
question: Which beta?
seeds: [0]
search: {space: {kl.beta: {low: 0.01, high: 1.0, log: true}}, trials: 2, confirm: {top: 1, seeds: [7, 8]}}
"""


def test_a_search_is_read_if_it_is_of_this_study_and_refused_when_damaged(tmp_path: Path) -> None:
    (tmp_path / "hunt.yaml").write_text(STUDY, encoding="utf-8")
    study, folder = load_study(tmp_path / "hunt.yaml"), StudyFolder(tmp_path, tmp_path / "studies" / "hunt" / "tiny")
    folder.path.mkdir(parents=True)

    def trial(number: int, status: str, knobs: dict[str, float], values: dict[str, float]) -> dict[str, Any]:
        head = {"number": number, "arm": f"search-{number:03d}", "overrides": knobs, "status": status}
        return {**head, "values": values, "feasible": bool(values), "steps": 64}

    won = trial(0, "complete", {"kl.beta": 0.1}, {"eval/win_rate": 0.7})
    content: dict[str, Any] = {
        "search": study.search.model_dump(mode="json"),
        "trials": [won, trial(1, "pruned", {"kl.beta": 0.0, "optimiser.lr": 1e-4}, {})],
        "pareto": [0],
        "confirmed": [{"arm": "confirm-1", "number": 0, "overrides": {"kl.beta": 0.1}}],
    }
    assert load_search(folder, study) is None
    write_sealed(folder.search_file, content)
    found = load_search(folder, study.model_copy(update={"seeds": (7, 8)}))  # as its confirmation has them
    assert [(one.number, one.values) for one in found.trials] == [(0, {"eval/win_rate": 0.7}), (1, {})]
    assert (found.metrics, found.knobs) == (["eval/win_rate"], ["kl.beta", "optimiser.lr"])
    assert (found.pareto, found.confirmed) == ((0,), {"confirm-1": 0})
    other = study.search.model_copy(update={"seed": 5})
    assert load_search(folder, study.model_copy(update={"search": other})) is None
    folder.search_file.write_text("{", encoding="utf-8")
    with pytest.raises(Damaged, match=r"search\.json is damaged: .*; run study 'hunt' .*again"):
        load_search(folder, study)


THEIR_BETAS = {"beta_0.01": 0.01, "beta_0.05": 0.05, "beta_0.2": 0.2}
CLAIM = "falsifiers: [{name: near, claim: it is, metric: objective/kl, op: '>', threshold: 10, before_step: 150}]\n"
Imported = tuple[StudyFolder, Study]


def imported_at(root: Path, seeds: tuple[int, ...], more: str = "", **changes: Any) -> Imported:
    logs, file = trl_logs.folder(root / "logs", THEIR_BETAS, seeds, **changes), root / "trl.yaml"
    import_folder(logs, str(file), Layout.at(root / "out"), "trl-ppo", 16)
    file.write_text(file.read_text() + more)
    return find_study(Layout.at(root / "out"), str(file))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    def clip_in_percent(made: trl_logs.Rows) -> trl_logs.Rows:
        return [{**row, "policy/clipfrac_avg": 7.5} for row in made]

    def diverges(made: trl_logs.Rows) -> trl_logs.Rows:
        made[8]["objective/kl"] = math.nan
        return made

    odd = {"beta_0.05__1": clip_in_percent, "beta_0.01__2": diverges}
    return imported_at(tmp_path_factory.mktemp("imported"), (0, 1, 2), CLAIM, **odd)


def test_arms_are_compared_by_where_their_training_ended(imported: Imported) -> None:
    records = load_records(*imported)
    findings = analyse(records)
    assert records.counts() == {"complete": 8, "diverged": 1}
    assert records.evaluated("beta_0.01") == [0, 1], "a diverged trial is counted, not averaged"
    last = [trl_logs.rows(0.2, seed)[-1]["objective/scores"] for seed in (0, 1, 2)]
    estimate = findings.arm("beta_0.2").estimates["objective/scores"]
    assert (estimate.value, estimate.seeds, estimate.prompts) == (pytest.approx(sum(last) / 3), 3, 0)
    assert not any(key.startswith("eval/") for result in findings.arms for key in result.estimates)
    (effect,) = [one for one in findings.effects_on("objective/scores") if one.arm == "beta_0.2"]
    assert set(effect.per_seed) == {0, 1}
    assert {one.outcome for claim in findings.claims for one in claim.verdicts if one.arm == "beta_0.2"} == {"SURVIVED"}


@pytest.mark.usefixtures("quick")
def test_the_page_says_what_is_not_there(imported: Imported) -> None:
    folder = render_report(*imported).parent
    page = (folder / "index.html").read_text()
    for text in (
        "beta_0.05/seed_1.jsonl, line 1: policy/clipfrac_avg (policy/pg_clipfrac) = 7.5: ",
        "beta_0.01/seed_2.jsonl, line 9: objective/kl = NaN: not finite",
    ):
        assert text in page
    drawn = pd.read_csv(folder / "figures" / "training.csv")
    clip = drawn[drawn["metric"] == "policy/pg_clipfrac"]
    assert clip["mean"].max() <= 1.0
    assert set(clip[clip["arm"] == "beta_0.05"]["seeds"]) == {2}, "the series in percent is not drawn"
    assert "nats per sequence" in (folder / "report.md").read_text(), "the KL, as no length was stated"
    assert not (folder / "tables" / "completions.csv").exists()


def test_final_measurements_that_were_imported_are_compared(tmp_path: Path) -> None:
    def judged(made: trl_logs.Rows) -> trl_logs.Rows:
        return [*made, {"step": 12, "eval/win_rate": 0.6 + made[-1]["objective/kl"] / 100}]

    changes = {f"{arm}__{seed}": judged for arm in THEIR_BETAS for seed in (0, 1)}
    records = load_records(*imported_at(tmp_path, (0, 1), **changes))
    assert records.study.objective.metric == "eval/win_rate"
    kls = [trl_logs.rows(0.2, seed)[-1]["objective/kl"] for seed in (0, 1)]
    assert analyse(records).arm("beta_0.2").estimates["eval/win_rate"].value == pytest.approx(0.6 + sum(kls) / 200)
