"""One table of many trials, arms of different programs, files that are no logs, and imports after the first."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import trl_logs
from trl_logs import GRPO

from pipeline.run.layout import Layout
from studies.definition.schema import load_study

Run = Callable[..., str]
pytestmark = pytest.mark.usefixtures("no_mlflow")


def rows(arms: dict[str, float], seeds: tuple[int, ...] = (0, 1, 2)) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "seed": seed, "step": step, "reward": level + 0.01 * step * (1 + seed)}
        for step in range(1, 11)
        for arm, level in arms.items()
        for seed in seeds
    ]


def written(path: Path, made: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(made[0]))
            table.writeheader()
            table.writerows(made)
    elif path.suffix == ".parquet":
        pd.DataFrame(made).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl", "all.parquet"])
def test_a_tidy_table_is_many_trials(tmp_path: Path, succeeds: Run, drawn: Run, layout: Layout, name: str) -> None:
    table = written(tmp_path / name, rows({"a": 0.1, "b": 0.3}))
    told = succeeds("import", table, "--name", "mine")
    assert "mine: 6 trials of 2 arms, 10 gradient steps" in told
    record = layout.study("mine", "imported").record("b", 2)
    assert record is not None
    assert record.ends["objective/scores"] == pytest.approx(0.3 + 0.01 * 10 * 3)
    assert record.config["imported"]["file"] == f"{name} (b seed 2)"
    if name == "all.csv":
        assert "b (+0.2" in drawn("mine", "effects")


def test_other_columns_tell_the_trials_apart_when_the_mapping_says_so(tmp_path: Path, succeeds: Run) -> None:
    made = [{"method": row.pop("arm"), "run": row.pop("seed"), **row} for row in rows({"a": 0.1})]
    written(tmp_path / "all.csv", made)
    Path("map.yaml").write_text("columns: {arm: method, seed: run}\n")
    assert "mine: 3 trials of 1 arm" in succeeds("import", "all.csv", "--name", "mine", "--map", "map.yaml")


def test_a_table_without_seeds_can_state_one(tmp_path: Path, succeeds: Run) -> None:
    made = [{key: value for key, value in row.items() if key != "seed"} for row in rows({"a": 0.1, "b": 0.3}, (0,))]
    written(tmp_path / "all.csv", made)
    Path("map.yaml").write_text("columns: {arm: arm, seed: 7}\n")
    assert "added: a seed 7, b seed 7" in succeeds("import", "all.csv", "--name", "mine", "--map", "map.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": "x"}, "all.csv, line 2: seed = 'x': a seed is a whole number, 0 or more"),
        ({"seed": "inf"}, "all.csv, line 2: seed = 'inf': a seed is a whole number"),
        ({"arm": "../up"}, "all.csv, line 2: arm: the name '../up' cannot be used"),
        ({"arm": ""}, "all.csv, line 2: arm: the name '' cannot be used"),
    ],
)
def test_arms_and_seeds_that_cannot_be(tmp_path: Path, refused: Run, change: dict[str, Any], words: str) -> None:
    made = rows({"a": 0.1})
    made[0] |= change
    written(tmp_path / "all.csv", made)
    assert words in refused("import", "all.csv", "--name", "mine")


def test_files_that_are_no_logs_are_listed_and_left(tmp_path: Path, succeeds: Run) -> None:
    logs = trl_logs.folder(tmp_path / "logs")
    (logs / "config.json").write_text('{"beta": 0.05}')
    (logs / "summary.csv").write_text("model,score\na,1\n")
    (logs / "notes.txt").write_text("nothing to read")
    told = succeeds("import", logs, "--name", "mine", "--steps-per-update", 16, "--exclude", "beta_0.2/*")
    assert "mine: 2 trials of 1 arm" in told
    assert "  config.json: its name tells no arm and seed, and it is no table" in told
    assert "  summary.csv: neither its name nor columns 'arm' and 'seed' tell arm and seed" in told
    assert "  beta_0.2/seed_0.jsonl: fits a pattern to exclude" in told
    told = succeeds("import", logs, "--name", "other", "--steps-per-update", 16, "--include", "beta_0.2/*")
    assert "other: 2 trials of 1 arm" in told


def test_an_arm_of_another_program_has_a_mapping_of_its_own(tmp_path: Path, succeeds: Run, layout: Layout) -> None:
    logs = trl_logs.folder(tmp_path / "logs", {"ppo": 0.05})
    for seed in (0, 1):
        trl_logs.write(logs / "grpo" / f"seed_{seed}.jsonl", [{"step": at, **GRPO} for at in range(1, 13)])
        own = [{"t": at, "R": 0.1 * at} for at in range(1, 13)]
        trl_logs.write(logs / "mine" / f"seed_{seed}.jsonl", own)
    Path("map.yaml").write_text(
        "steps_per_update: 16\n"
        "arms:\n"
        "  grpo: {program: trl-grpo, steps_per_update: 2}\n"
        "  mi*: {step: {key: t, counts: gradient_steps}, metrics: {objective/scores: {key: R, factor: 2}}}\n"
    )
    told = succeeds("import", logs, "--name", "three", "--map", "map.yaml")
    assert (
        "objective/scores: objective/scores (arms ppo)" in told
        or "objective/scores: objective/scores (arm ppo)" in told
    )
    assert "objective/scores: reward (arm grpo)" in told
    assert "objective/scores: 2 x R (arm mine)" in told
    folder = layout.study("three", "imported")
    steps = {arm: folder.record(arm, 0).steps for arm in ("ppo", "grpo", "mine")}  # type: ignore[union-attr]
    assert steps == {"ppo": 192, "grpo": 12, "mine": 12}
    assert folder.record("mine", 0).ends["objective/scores"] == pytest.approx(2.4)  # type: ignore[union-attr]


def test_keys_of_an_arms_own_mapping_are_looked_for_in_its_logs(tmp_path: Path, refused: Run) -> None:
    logs = trl_logs.folder(tmp_path / "logs", {"ppo": 0.05, "other": 0.2})
    Path("map.yaml").write_text("steps_per_update: 16\narms: {other: {metrics: {objective/gold: goldd}}}\n")
    told = refused("import", logs, "--name", "mine", "--map", "map.yaml")
    assert "mapping: arms.other.metrics.objective/gold: no log has a key 'goldd'" in told


def test_a_second_import_adds_its_trials(tmp_path: Path, succeeds: Run, drawn: Run, layout: Layout) -> None:
    first = written(tmp_path / "first.csv", rows({"a": 0.1}))
    second = written(tmp_path / "second.csv", rows({"b": 0.3}, (0, 1, 2, 3)))
    succeeds("import", first, "--name", "mine")
    kept = {path.name: path.read_bytes() for path in layout.study("mine", "imported").trial_files()}
    told = succeeds("import", second, "--name", "mine")
    assert "added: b seed 0, b seed 1, b seed 2, b seed 3" in told
    assert "removed" not in told
    now = {path.name: path.read_bytes() for path in layout.study("mine", "imported").trial_files()}
    assert len(now) == 7
    assert {name: now[name] for name in kept} == kept
    study = load_study("mine.yaml")
    assert (list(study.arm_overrides()), study.seeds, study.baseline) == (["a", "b"], (0, 1, 2, 3), "a")
    assert "b (+0.2" in drawn("mine", "effects")


def test_a_recorded_trial_is_not_replaced_without_a_word(
    tmp_path: Path, succeeds: Run, refused: Run, layout: Layout
) -> None:
    first = written(tmp_path / "first.csv", rows({"a": 0.1, "c": 0.2}))
    second = written(tmp_path / "second.csv", rows({"a": 0.9}))
    succeeds("import", first, "--name", "mine")
    folder = layout.study("mine", "imported")
    before = {path.name: path.read_bytes() for path in folder.trial_files()}
    told = refused("import", second, "--name", "mine")
    assert "a seed 0, a seed 1, a seed 2 are recorded from other files or with another mapping" in told
    assert "--replace" in told
    assert {path.name: path.read_bytes() for path in folder.trial_files()} == before
    told = succeeds("import", second, "--name", "mine", "--replace")
    assert "changed: a seed 0, a seed 1, a seed 2" in told
    assert "removed: c seed 0, c seed 1, c seed 2" in told
    assert list(load_study("mine.yaml").arm_overrides()) == ["a"]


def test_imports_of_different_names_know_nothing_of_each_other(
    tmp_path: Path, succeeds: Run, refused: Run, layout: Layout
) -> None:
    first = written(tmp_path / "first.csv", rows({"a": 0.1}))
    second = written(tmp_path / "second.csv", rows({"a": 0.9}))
    succeeds("import", first, "--name", "one")
    before = {path.name: path.read_bytes() for path in layout.study("one", "imported").trial_files()}
    succeeds("import", second, "--name", "two")
    assert {path.name: path.read_bytes() for path in layout.study("one", "imported").trial_files()} == before
    (tmp_path / "elsewhere").mkdir()
    told = refused("import", second, "--name", tmp_path / "elsewhere" / "one.yaml")
    assert "the results of 'one' are those of" in told


def test_an_edited_study_file_is_not_grown(tmp_path: Path, succeeds: Run, refused: Run) -> None:
    succeeds("import", written(tmp_path / "first.csv", rows({"a": 0.1})), "--name", "mine")
    file = Path("mine.yaml")
    file.write_text(file.read_text().replace("What do", "What did"))
    told = refused("import", written(tmp_path / "second.csv", rows({"b": 0.3})), "--name", "mine")
    assert "add 'b: {}' there" in told
    assert "What did" in file.read_text()


@pytest.mark.parametrize("axis", ["Step", "train/global_step"])
def test_panels_of_wandb_are_trials_of_all_their_metrics(
    tmp_path: Path, succeeds: Run, layout: Layout, axis: str
) -> None:
    (tmp_path / "panels").mkdir()
    for number, metric in enumerate(("train/objective/scores", "train/objective/kl")):
        names = [f"{run} - {metric}{end}" for run in ("a-seed0", "b - c") for end in ("", "__MIN", "__MAX")]
        lines = [[step, number + step, 0, 99, number + step, 0, 99] for step in (3, 1, 2)]
        lines.append([4, *[""] * 6])
        text = "".join(",".join(map(str, line)) + "\n" for line in ([axis, *names], *lines))
        (tmp_path / "panels" / f"wandb_export_{number}.csv").write_text(text)
    told = succeeds("import", tmp_path / "panels", "--name", "mine")
    assert "mine: 1 trial of 1 arm, 3 gradient steps" in told
    assert "wandb_export_0.csv: tells no arm and seed of b - c" in told
    record = layout.study("mine", "imported").record("a", 0)
    assert record is not None
    assert record.ends == {"objective/scores": 3, "objective/kl": 4}
