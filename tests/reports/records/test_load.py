"""Records become frames; what is missing or damaged is counted or named, never dropped in silence."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from helpers import republish, write_record, write_sealed

from pipeline.errors import Damaged, Lost, UserError
from pipeline.run.layout import Layout
from reports.records.load import find_study, load_records

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built


def first_artifact(built: Built, stage: str, name: str) -> Path:
    record = built.folder.record("beta_0.05", 0)
    assert record is not None
    return built.folder.root / record.stages[stage].path / name


def test_every_planned_trial_has_a_row_and_a_status(demo: Built) -> None:
    records = load_records(demo.folder, demo.study)
    assert len(records.trials) == 12
    assert records.counts() == {"complete": 9, "budget": 1, "diverged": 1, "missing": 1}
    assert records.counts("beta_0") == {"complete": 2, "diverged": 1}
    assert records.evaluated("beta_0") == [0, 1]
    assert records.evaluated("beta_0.2") == [0, 1, 2]
    assert list(dict.fromkeys(records.trials["arm"])) == ["beta_0", "beta_0.01", "beta_0.05", "beta_0.2"]


def test_frames_equal_the_files(demo: Built) -> None:
    records = load_records(demo.folder, demo.study)
    table = pd.read_parquet(first_artifact(demo, "evaluate", "prompts.parquet"))
    mine = records.prompts[(records.prompts["arm"] == "beta_0.05") & (records.prompts["seed"] == 0)]
    np.testing.assert_array_equal(mine["kl"].to_numpy(), table["kl"].to_numpy())
    assert mine["win"].mean() == pytest.approx(table["win"].mean())
    curve = pd.read_parquet(first_artifact(demo, "train", "metrics.parquet"))
    mine = records.curves[(records.curves["arm"] == "beta_0.05") & (records.curves["seed"] == 0)]
    np.testing.assert_array_equal(mine["policy/entropy"].to_numpy(), curve["policy/entropy"].to_numpy())
    assert len(records.samples) == 10 * 16


def test_infinities_of_a_diverged_trial_are_not_recorded_values(demo: Built) -> None:
    records = load_records(demo.folder, demo.study)
    curve = records.curves[(records.curves["arm"] == "beta_0") & (records.curves["seed"] == 2)]
    assert not np.isinf(curve.select_dtypes("number").to_numpy()).any()
    assert math.isnan(curve["policy/entropy"].iloc[-1])


def test_shared_stages_carry_their_measurements(demo: Built) -> None:
    records = load_records(demo.folder, demo.study)
    found = {entry["stage"]: entry for entry in records.upstream if entry["stage"] in ("sft", "reward")}
    assert found["sft"]["summary"]["perplexity"] == 8.31
    assert found["reward"]["summary"]["accuracy"] == 0.79
    assert found["sft"]["trials"] == 11


def test_study_never_run(demo: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = demo.study.source
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(UserError, match=rf"has not been run on profile 'tiny'.*make study STUDY={source}$"):
        find_study(Layout.at(tmp_path), source)
    with pytest.raises(
        UserError, match=f"it has been run on: tiny; run it first: make study STUDY={source} PROFILE=smoke"
    ):
        find_study(demo.layout, source, "smoke")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"run it first: ablate study {source} --profile smoke"):
        find_study(demo.layout, source, "smoke")
    monkeypatch.chdir(Path(source).parent)
    with pytest.raises(UserError, match="run it first: ablate study kl_demo --profile smoke"):
        find_study(demo.layout, source, "smoke")


@pytest.mark.parametrize("content", ["{", "[]", '{"arm": "beta_0"}', "\x00"])
def test_damaged_record_is_one_line_with_its_file(build: Builder, tmp_path: Path, content: str) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    path = built.folder.trial_file("beta_0.05", 0)
    path.write_text(content)
    with pytest.raises(Damaged) as caught:
        load_records(built.folder, built.study)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("stage", "name"), [("train", "metrics.parquet"), ("evaluate", "prompts.parquet")])
def test_damaged_table_is_one_line_with_its_file(build: Builder, tmp_path: Path, stage: str, name: str) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    path = first_artifact(built, stage, name)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Damaged) as caught:
        load_records(built.folder, built.study)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "words"), [("kl", math.nan, "1 values of kl"), ("win", 1.5, "win is not between 0 and 1")]
)
def test_impossible_values_are_refused(build: Builder, tmp_path: Path, column: str, value: object, words: str) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    path = first_artifact(built, "evaluate", "prompts.parquet")
    table = pd.read_parquet(path)
    table.loc[0, column] = value
    table.to_parquet(path, index=False)
    republish(built.folder, path.parent)
    with pytest.raises(Damaged, match=words):
        load_records(built.folder, built.study)


def test_missing_artifact_is_refused_or_a_note(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    shutil.rmtree(first_artifact(built, "train", "metrics.parquet").parent)
    with pytest.raises(Lost, match=r"1 of \d recorded trials have lost results \(beta_0\.05 seed 0;"):
        load_records(built.folder, built.study)
    records = load_records(built.folder, built.study, without_missing=True)
    assert any("beta_0.05 seed 0" in note and "train/metrics.parquet" in note for note in records.notes)


def test_stale_record_is_reported_and_left_out(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, prompts=4, steps=64, stale=(("beta_0.05", 1),))
    records = load_records(built.folder, built.study)
    assert records.counts("beta_0.05") == {"complete": 2, "stale": 1}
    assert records.evaluated("beta_0.05") == [0, 2]
    assert any("beta_0.05 seed 1 was run with another configuration" in note for note in records.notes)


def test_all_stale_is_an_error_rather_than_an_empty_page(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64, missing=())
    write_sealed(built.folder.study_file, {**built.folder.started(), "overrides": {"optimiser.lr": 0.002}})
    with pytest.raises(UserError, match="all 4 records were run with another configuration"):
        load_records(built.folder, built.study)


def test_records_of_arms_that_are_gone_are_mentioned(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    fewer = built.study.model_copy(update={"arms": {"beta_0.05": {"kl.beta": 0.05}}})
    records = load_records(built.folder, fewer)
    assert len(records.trials) == 1
    assert any("beta_0.2 seed 0 is recorded but no longer part" in note for note in records.notes)


def test_record_that_points_outside_is_refused(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    record = built.folder.record("beta_0.05", 0)
    assert record is not None
    outside = record.stages["train"].model_copy(update={"path": "../../../etc"})
    write_record(built.folder, record.model_copy(update={"stages": {**record.stages, "train": outside}}))
    with pytest.raises(Damaged, match="leaves the output folder"):
        load_records(built.folder, built.study)


def test_answers_are_one_row_a_seed_and_one_column_a_prompt(demo: Built) -> None:
    records = load_records(demo.folder, demo.study)
    shared = records.shared_prompts([("beta_0", 0), ("beta_0.05", 1)])
    np.testing.assert_array_equal(shared, np.arange(200))
    table = pd.read_parquet(first_artifact(demo, "evaluate", "prompts.parquet"))
    backwards = records.answers("beta_0.05", "kl", [2, 0], shared[::-1])
    np.testing.assert_array_equal(backwards[1], table["kl"].to_numpy()[::-1])
    assert not records.shared_prompts([("beta_0", 0), ("beta_0", 2)]).size, "a trial without results shares no prompt"


def test_prompts_that_only_some_trials_answered_are_not_shared(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0, 1), prompts=6, steps=64)
    path = first_artifact(built, "evaluate", "prompts.parquet")
    pd.read_parquet(path).iloc[[5, 1, 2]].to_parquet(path, index=False)
    republish(built.folder, path.parent)
    records = load_records(built.folder, built.study)
    assert records.shared_prompts([("beta_0.05", 0), ("beta_0.05", 1)]).tolist() == [1, 2, 5]
    assert np.isnan(records.answers("beta_0.05", "kl", [0], pd.Index([0, 1]))).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("stage", "name", "change", "words"),
    [
        ("train", "metrics.parquet", lambda table: table.drop(columns="step"), "no column step"),
        (
            "evaluate",
            "prompts.parquet",
            lambda table: table.assign(prompt_id=0),
            "prompt_id stands in more than one row",
        ),
    ],
)
def test_tables_of_another_shape_are_one_line_with_their_file(
    build: Builder, tmp_path: Path, stage: str, name: str, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    path = first_artifact(built, stage, name)
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    republish(built.folder, path.parent)
    with pytest.raises(Damaged, match=words) as caught:
        load_records(built.folder, built.study)
    assert str(path) in str(caught.value)


def test_of_two_rows_at_one_step_the_last_counts(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    path = first_artifact(built, "train", "metrics.parquet")
    table = pd.read_parquet(path)
    pd.concat([table, table.tail(1).assign(**{"policy/entropy": 9.0})]).iloc[::-1].to_parquet(path, index=False)
    republish(built.folder, path.parent)
    curve = load_records(built.folder, built.study).curves
    mine = curve[curve["arm"] == "beta_0.05"]
    assert mine["step"].tolist() == table["step"].tolist()
    assert mine["policy/entropy"].iloc[-1] == table["policy/entropy"].iloc[-1]


def test_series_of_an_arm_are_the_finite_records_of_its_seeds(demo: Built) -> None:
    records = load_records(demo.folder, demo.study)
    found = records.series("beta_0", "policy/entropy")
    assert list(found) == [0, 1, 2]
    for seed, (steps, values) in found.items():
        rows = records.curves[(records.curves["arm"] == "beta_0") & (records.curves["seed"] == seed)].dropna(
            subset=["policy/entropy"]
        )
        np.testing.assert_array_equal(steps, rows["step"].to_numpy())
        np.testing.assert_array_equal(values, rows["policy/entropy"].to_numpy())
    assert records.series("beta_0", "policy/kl_loss") == {}
    assert records.series("beta_0.01", "policy/entropy").keys() == {0, 1}, "seed 2 is missing"
    assert records.update_length == 16
