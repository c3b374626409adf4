from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import fake_trial
import pytest
from helpers import wait_until
from light_study import SMALL, Write, alive, command, go

from pipeline.errors import Fault, UserError
from pipeline.run.layout import Layout
from studies.definition.design import cells
from studies.definition.schema import Study
from studies.execution import hand
from studies.execution.hand import Gpus
from studies.execution.records import is_current, sound_record
from studies.execution.study import executor

CELLS = {("weak", 0), ("weak", 1), ("strong", 0), ("strong", 1)}
BOTH = pytest.mark.parametrize("name", ["inline", "processes"])

pytestmark = pytest.mark.usefixtures("no_mlflow")


def in_optuna(layout: Layout) -> list[tuple[str, str, int, float | None]]:
    import optuna

    storage = optuna.storages.RDBStorage(f"sqlite:///{layout.study('small', 'tiny').optuna_file}")
    found = []
    for summary in optuna.get_all_study_names(storage=storage):
        for trial in optuna.load_study(study_name=summary, storage=storage).trials:
            found.append((trial.state.name, trial.params["arm"], trial.params["seed"], trial.value))
    return sorted(found)


@BOTH
def test_a_study_runs_once_and_is_then_all_cached(write_study: Write, layout: Layout, name: str) -> None:
    result, text = go(write_study(), layout, name)
    assert {(record.arm, record.seed) for record in result.records} == CELLS
    assert {record.status for record in result.records} == {"complete"}
    assert fake_trial.calls(layout, "reward") == fake_trial.calls(layout, "reference") == ["-"]
    assert sorted(fake_trial.calls(layout)) == ["0.01/0", "0.01/1", "0.2/0", "0.2/1"]
    assert "weak seed 0: complete in " in text
    assert "(4 of 4 trials)" in text
    built = [line.split()[0] for line in text.splitlines() if " built in " in line]
    assert built == ["prompts", "sft", "reward", "reference"]
    assert not list((layout.study("small", "tiny").path / "log").glob("*"))
    assert (len(fake_trial.pids(layout)) > 4) == (name == "processes")  # each task has a process of its own
    content = json.loads(layout.study("small", "tiny").study_file.read_text())
    assert Study.model_validate(content["study"]).arm_overrides() == write_study().arm_overrides()
    assert (list(content["study"]["arms"]), content["overrides"]) == (["weak", "strong"], SMALL)
    again, text = go(write_study(), layout, name)
    assert again.records == result.records
    assert len(fake_trial.calls(layout)) == 4
    assert "already recorded: 4 of 4 trials" in text
    assert in_optuna(layout) == sorted(("COMPLETE", arm, seed, 0.6) for arm, seed in CELLS)


SAMPLED = """
  strong: {kl.beta: 0.2}
  one: {algorithm: a_star_po, algorithm.v_star.beta: 2.0}
  other: {algorithm: a_star_po, kl.beta: 0.3}
  few: {algorithm: a_star_po, values.samples: 8}
"""


def test_a_stage_that_some_arms_need_is_built_once_for_them_and_never_for_others(
    write_study: Write, layout: Layout
) -> None:
    result, shown = go(write_study(fake_trial.STUDY.replace("\n  strong: {kl.beta: 0.2}\n", SAMPLED)), layout)
    assert sorted(fake_trial.calls(layout, "values")) == ["16", "8"]
    keys = {record.arm: record.stages["values"].key for record in result.records if "values" in record.stages}
    assert keys.keys() == {"one", "other", "few"}
    assert keys["one"] == keys["other"] != keys["few"]
    assert "(10 of 10 trials)" in shown


def test_only_what_changed_or_was_lost_runs_again(write_study: Write, layout: Layout) -> None:
    go(write_study(), layout)
    text = Path(write_study().source).read_text().replace("weak: {kl.beta: 0.01}", "weak: {kl.beta: 0.02}")
    result, _ = go(write_study(text), layout)
    assert sorted(fake_trial.calls(layout)) == ["0.01/0", "0.01/1", "0.02/0", "0.02/1", "0.2/0", "0.2/1"]
    assert len(result.records) == 4
    lost = next(record for record in result.records if (record.arm, record.seed) == ("strong", 1))
    manifest, before = layout.root / lost.stages["train"].path / "manifest.json", in_optuna(layout)
    manifest.unlink()
    layout.study("small", "tiny").optuna_file.write_bytes(b"no database")
    again, _ = go(write_study(text), layout)
    assert fake_trial.calls(layout)[6:] == ["0.2/1"]
    assert manifest.exists()
    assert len(again.records) == 4
    assert in_optuna(layout) == before


@BOTH
def test_a_trial_that_dies_is_tried_once_more_and_then_given_up_until_the_next_start(
    write_study: Write, layout: Layout, name: str
) -> None:
    killed = {"kill": {"0.2/1": 1}} if name == "processes" else {}
    fake_trial.control(layout, crash={"0.01/1": 1, "0.2/0": 9}, **killed)
    result, text = go(write_study(), layout, name)
    failed = [record for record in result.records if record.status == "failed"]
    assert [(record.arm, record.seed) for record in failed] == [("strong", 0)]
    assert len(result.records) == 4
    assert failed[0].reason == "RuntimeError: boom in 0.2/0"
    assert "weak seed 1: RuntimeError: boom in 0.01/1\nweak seed 1: tried again" in text
    assert "strong seed 0: given up after 2 attempts" in text
    assert [fake_trial.calls(layout).count(cell) for cell in ("0.01/0", "0.01/1", "0.2/0")] == [1, 2, 2]
    if name == "processes":
        assert "strong seed 1: killed by SIGKILL (often: out of memory)\nstrong seed 1: tried again" in text
        log = layout.study("small", "tiny").log_file("strong__seed0")
        assert str(log) in text
        assert log.read_text().count('raise RuntimeError(f"boom in {cell}")') == 2
    assert {one.outcome for one in result.verdicts if (one.arm, one.seed) == ("strong", 0)} == {"NOT TESTED"}
    assert ("FAIL", "strong", 0, None) in in_optuna(layout)
    fake_trial.control(layout)
    again, _ = go(write_study(), layout, name)
    assert [record.status for record in again.records] == ["complete"] * 4


@BOTH
def test_a_users_mistake_stops_the_study(write_study: Write, layout: Layout, name: str) -> None:
    fake_trial.control(layout, user_error=["0.01/0"])
    with pytest.raises(UserError, match=r"weak seed 0: optimiser\.lr is too large"):
        go(write_study(), layout, name)


def test_shared_stages_that_fail_twice_stop_the_study(write_study: Write, layout: Layout) -> None:
    fake_trial.control(layout, upstream_crash=True)
    with pytest.raises(Fault, match=r"shared stages of seed 0 failed: .*the reward model exploded; details: .*\.txt"):
        go(write_study(), layout, "processes")
    assert fake_trial.calls(layout, "reward") == ["-", "-"]
    assert fake_trial.calls(layout) == []


def test_a_diverged_trial_counts_as_the_worst(write_study: Write, layout: Layout) -> None:
    fake_trial.control(layout, diverge=["0.01/1"])
    result, _ = go(write_study(), layout)
    assert ("COMPLETE", "weak", 1, 0.0) in in_optuna(layout)
    assert [record.reason for record in result.records if record.status == "diverged"] == ["entropy 0"]


def test_a_study_that_cannot_fit_is_refused_before_anything_is_written(
    write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: object, label: str) -> None:
        raise UserError(f"{label} cannot fit")

    monkeypatch.setattr(fake_trial, "check_budget", refuse)
    with pytest.raises(UserError, match="weak seed 0 cannot fit"):
        go(write_study(), layout)
    assert not layout.study("small", "tiny").path.exists()


def test_a_record_of_other_artifacts_or_settings_does_not_count(write_study: Write, layout: Layout) -> None:
    """The code changed, and another study has built the new artifacts already."""
    go(write_study(), layout)
    cell = cells(write_study(), None, SMALL)[0]
    stages = fake_trial.plan_trial(cell.config, layout)
    record = layout.study("small", "tiny").record(cell.arm, cell.seed)
    assert record is not None
    assert is_current(record, stages)
    assert sound_record(layout.study("small", "tiny"), cell) == record
    other = cells(write_study(), None, {**SMALL, "optimiser.lr": 0.5})[0]
    assert sound_record(layout.study("small", "tiny"), other) is None
    assert not is_current(record, [*stages[:-1], replace(stages[-1], key="0" * 20)])
    assert not is_current(record, [*stages[:-1], replace(stages[-1], cached=False)])


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_command_takes_its_children_along_and_the_same_command_continues(
    write_study: Write, layout: Layout, tmp_path: Path, how: signal.Signals
) -> None:
    fake_trial.control(layout, hang=["0.01/1", "0.2/1"])
    process = command("study", write_study().source, layout, tmp_path, 2)
    folder = layout.study("small", "tiny")
    wait_until(lambda: len(folder.trial_files()) >= 2 and len(fake_trial.calls(layout)) >= 4)
    finished = {(record.arm, record.seed): record.finished for record in folder.records()}
    if how is signal.SIGINT:
        os.killpg(process.pid, how)  # as Ctrl-C does: the whole group
    else:
        os.kill(process.pid, how)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == (130 if how is signal.SIGINT else -how)
    assert errors == b""
    wait_until(lambda: not any(map(alive, fake_trial.pids(layout))), 5.0)
    fake_trial.control(layout)
    result, _ = go(write_study(), layout, "processes")
    assert {(record.arm, record.seed) for record in result.records} == CELLS
    for record in result.records:
        if (record.arm, record.seed) in finished:
            assert record.finished == finished[record.arm, record.seed]
    assert [fake_trial.calls(layout).count(cell) for cell in ("0.01/0", "0.2/0")] == [1, 1]


def test_a_child_far_beyond_its_cap_is_killed_and_its_log_shows_where_it_stood(
    write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trial.control(layout, hang=["0.01/0"])
    hanging = "weak seed 0"
    monkeypatch.setattr(hand, "_longest", lambda task: 4.0 if task.label == hanging else 1e3)
    result, text = go(write_study(), layout, "processes")
    assert {record.status for record in result.records if (record.arm, record.seed) == ("weak", 0)} == {"failed"}
    assert "weak seed 0: killed by SIGABRT" in text
    assert "_misbehave" in layout.study("small", "tiny").log_file("weak__seed0").read_text()


def test_unknown_executors_and_options_are_refused() -> None:
    names = "processes, inline, slurm, ray"
    with pytest.raises(UserError, match=rf"no executor 'proceses'; did you mean 'processes'\?; there are: {names}"):
        executor("proceses", 1)
    with pytest.raises(
        UserError, match=r"--cluster a\.yaml: the executor 'inline' has no options; those of sbatch go with slurm"
    ):
        executor("inline", 1, Path("a.yaml"))


def test_each_process_has_cards_of_its_own_and_two_commands_share_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    mine, others = Gpus(), Gpus()
    assert mine.hold(2, 1)
    assert others.hold(2, 1)  # the one that is left
    assert not others.hold(2, 2)
    assert [mine.take(1) for _ in range(3)] == [["4"], ["6"], ["4"]]
    mine.give_back(["6"])
    assert mine.take(1) == ["6"]
    assert others.take(1) == ["7"]
