"""Rows of each trial, and the content of a file: every form there is, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trl_logs import rows, write

from pipeline.errors import UserError
from studies.importing.logs import find_logs, read_table
from studies.importing.maps import Map


@pytest.mark.parametrize(
    ("name", "arm", "seed"),
    [
        ("beta_0.05/seed_3.jsonl", "beta_0.05", 3),
        ("beta_0.05/3.csv", "beta_0.05", 3),
        ("kl/beta_0.05/seed3.csv", "kl-beta_0.05", 3),
        ("beta_0.05-seed3/checkpoint-500/trainer_state.json", "beta_0.05", 3),
    ],
)
def test_arm_and_seed_stand_in_the_path(tmp_path: Path, name: str, arm: str, seed: int) -> None:
    write(tmp_path / "runs" / name, rows(updates=1), state=name.endswith("trainer_state.json"))
    found, unread = find_logs(tmp_path / "runs", Map())
    assert ([*found], unread) == ([(arm, seed)], {})


def test_a_trainers_folder_is_one_trial_of_its_newest_state(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "a" / "seed_0"
    for updates, folder in ((1, "checkpoint-90"), (2, "checkpoint-500"), (3, "")):
        write(run / folder / "trainer_state.json", rows(updates=updates), state=True)
        write(run / folder / "config.json", [])
        assert len(find_logs(tmp_path / "logs", Map())[0]["a", 0]) == updates


def test_what_is_not_read_is_listed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for name in ("a-seed0.csv", ".cache/b-seed0.csv", ".c-seed0.csv", "x/other.csv", "2024/1.csv"):
        write(logs / name, rows(updates=1))
    (logs / "config.json").write_text('{"beta": 0.05}')
    (logs / "2024" / "1.csv").write_text("day,steps_done\n1,2\n")
    (logs / "weights-seed0.pkl").write_bytes(b"\x80\x04.")
    found, unread = find_logs(logs, Map())
    assert [*found] == [("a", 0)]
    assert [*unread] == ["2024/1.csv", "config.json", "x/other.csv"]
    assert "did you mean 'steps_done'?, and no prompt_id; columns: day, steps_done" in unread["2024/1.csv"]
    assert "with 'log_history', is expected" in unread["config.json"]
    with pytest.raises(
        UserError, match=r"no log \(other.csv: neither its name nor columns hold an arm and a seed\); name"
    ):
        find_logs(logs / "x", Map())


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "trainer_state.json"])
def test_every_form_holds_the_same(tmp_path: Path, name: str) -> None:
    made, path = rows(updates=3), tmp_path / name
    pd.DataFrame(made).to_parquet(path) if name == "a.parquet" else write(path, made, state=name.startswith("trainer"))
    table = read_table(path)
    assert table.astype(float).to_dict("records") == made
    assert table.index[0] == {"a.csv": "line 2", "a.jsonl": "line 1"}.get(name, "row 1"), "the place in the file"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.jsonl",
            '{"step": 1}\nnonsense\n{"step": 2}\n',
            "a.jsonl, line 2: cannot be read as jsonl: JSONDec",
        ),
        ("a.json", '{"step": [1, 2]}', "'log_history', is expected"),
        ("a.csv", "step,step\n1,2\n", "two columns have one name: step, step"),
        ("a.csv", "step,x\n1,2,3\n", "line 2: .* more cells than there are columns"),
        ("a.parquet", "PAR1", "cannot be read as parquet"),
    ],
)
def test_damage_is_one_line_with_its_place(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=words) as caught:
        read_table(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_line_at_the_end_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_table(tmp_path / "a.jsonl")["step"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("entries", "arm", "seed"),
    [
        ({}, "arm", "seed"),
        ({"arm": "model", "seed": "run"}, "model", "run"),
        ({"arm": "model", "seed": 7}, "model", "x"),
    ],
)
def test_a_table_of_many_trials(tmp_path: Path, entries: dict[str, Any], arm: str, seed: str) -> None:
    made = [{arm: name, seed: 7, "step": step, "reward": 0.5} for step in (1, 2) for name in ("a", "b")]
    path = write(tmp_path / "all.csv", [*made, {**made[0], arm: "c", seed: "one"}])
    found, unread = find_logs(path, Map(**entries))
    assert [*found["b", 7].index] == [("all.csv (b seed 7)", "line 3"), ("all.csv (b seed 7)", "line 5")]
    assert [*unread] == ([] if seed == "x" else ["all.csv (c seed one)"])


@pytest.mark.parametrize("axis", ["Step", "train/global_step"])
def test_panels_of_wandb_are_trials_of_all_their_metrics(tmp_path: Path, axis: str) -> None:
    for number, metric in enumerate(("train/objective/scores", "train/objective/kl")):
        names = [f"{run} - {metric}{end}" for run in ("a-seed0", "b - c") for end in ("", "__MIN", "__MAX")]
        lines = [[step, number + step, 0, 99, number + step, 0, 99] for step in (3, 1, 2)]
        text = "".join(",".join(map(str, line)) + "\n" for line in ([axis, *names], *lines, [4, *[""] * 6]))
        (tmp_path / f"wandb_export_{number}.csv").write_text(text)
    found, unread = find_logs(tmp_path, Map())
    assert [*found] == [("a", 0)]
    assert [*unread] == ["wandb_export_0.csv (b - c)", "wandb_export_1.csv (b - c)"]
    assert found["a", 0].count().to_dict() == {axis.removeprefix("train/"): 6, "objective/scores": 3, "objective/kl": 3}
