from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fake_trial
import pytest
from filelock import FileLock
from helpers import mind_interrupts
from light_study import SMALL, go

from pipeline.errors import Fault, UserError
from pipeline.run.layout import Layout
from studies.definition.design import cells
from studies.definition.schema import Study
from studies.execution.driver import is_finished
from studies.execution.executors import EXECUTORS, Inline
from studies.execution.jobs import Event, Finished, Job, NextJob

CELLS = {("weak", 0), ("weak", 1), ("strong", 0), ("strong", 1)}

pytestmark = pytest.mark.usefixtures("no_mlflow")


def told(layout: Layout) -> list[tuple[str, str, int, float | None]]:
    import optuna

    storage = optuna.storages.RDBStorage(layout.study("small", "tiny").optuna_uri)
    found = []
    for summary in optuna.get_all_study_names(storage=storage):
        for trial in optuna.load_study(study_name=summary, storage=storage).trials:
            found.append((trial.state.name, trial.params["arm"], trial.params["seed"], trial.value))
    return found


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_study_runs_once_and_is_then_all_cached(
    write_study: Callable[..., Study], layout: Layout, executor: str
) -> None:
    result, text = go(write_study(), layout, executor)
    assert {(record.arm, record.seed) for record in result.records} == CELLS
    assert {record.status for record in result.records} == {"complete"}
    assert fake_trial.calls(layout, "reward") == fake_trial.calls(layout, "reference") == ["-"]
    assert sorted(fake_trial.calls(layout)) == ["0.01/0", "0.01/1", "0.2/0", "0.2/1"]
    assert "weak seed 0: complete" in text
    assert "(4 of 4 trials)" in text
    record = result.records[0]
    assert (layout.root / record.stages["train"].path / "metrics.jsonl").exists()
    again, text = go(write_study(), layout, executor)
    assert again.records == result.records
    assert len(fake_trial.calls(layout)) == 4
    assert "already recorded: 4 of 4 trials" in text
    assert sorted(told(layout)) == sorted(("COMPLETE", arm, seed, 0.6) for arm, seed in CELLS)


SAMPLED = """
  strong: {kl.beta: 0.2}
  one: {algorithm: a_star_po, algorithm.v_star_beta: 2.0}
  other: {algorithm: a_star_po, algorithm.v_star_samples: 4}
  few: {algorithm: a_star_po, values.samples: 8}
"""


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_stage_that_some_arms_need_is_built_once_for_them_and_never_for_others(
    write_study: Callable[..., Study], layout: Layout, executor: str
) -> None:
    text = fake_trial.STUDY.replace("\n  strong: {kl.beta: 0.2}\n", SAMPLED)
    result, shown = go(write_study(text), layout, executor)
    assert len(result.records) == 10
    assert {record.status for record in result.records} == {"complete"}
    assert sorted(fake_trial.calls(layout, "values")) == ["16", "8"]
    assert fake_trial.calls(layout, "reward") == ["-"]
    keys = {record.arm: record.stages["values"].key for record in result.records if "values" in record.stages}
    assert keys.keys() == {"one", "other", "few"}
    assert keys["one"] == keys["other"] != keys["few"]
    assert "(10 of 10 trials)" in shown
    assert all((layout.root / record.stages["train"].path).exists() for record in result.records)


def test_study_file_tells_what_was_run(write_study: Callable[..., Study], layout: Layout) -> None:
    go(write_study(), layout)
    content = json.loads(layout.study("small", "tiny").study_file.read_text())
    assert Study.model_validate(content["study"]).arm_overrides() == write_study().arm_overrides()
    assert list(content["study"]["arms"]) == ["weak", "strong"]
    assert content["overrides"] == SMALL
    assert set(content["upstream"]) == {"prompts", "sft", "reward", "reference"}
    assert all((layout.root / stage["path"] / "manifest.json").exists() for stage in content["upstream"].values())


def test_only_what_changed_runs_again(write_study: Callable[..., Study], layout: Layout) -> None:
    go(write_study(), layout)
    study = write_study()
    text = Path(study.source).read_text().replace("weak: {kl.beta: 0.01}", "weak: {kl.beta: 0.02}")
    result, _ = go(write_study(text), layout)
    assert sorted(fake_trial.calls(layout))[-4:] == ["0.02/0", "0.02/1", "0.2/0", "0.2/1"]
    assert len(fake_trial.calls(layout)) == 6
    assert len(result.records) == 4


def test_a_lost_artifact_is_built_again(write_study: Callable[..., Study], layout: Layout) -> None:
    result, _ = go(write_study(), layout)
    lost = next(record for record in result.records if (record.arm, record.seed) == ("strong", 1))
    manifest = layout.root / lost.stages["train"].path / "manifest.json"
    manifest.unlink()
    again, _ = go(write_study(), layout)
    assert fake_trial.calls(layout)[4:] == ["0.2/1"]
    assert manifest.exists()
    assert len(again.records) == 4


@pytest.mark.parametrize("fault", ["kill", "crash"])
def test_a_crashed_trial_is_tried_once_more(write_study: Callable[..., Study], layout: Layout, fault: str) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, **{fault: {"0.2/0": 1}})
    result, text = go(write_study(), layout, "processes")
    assert {record.status for record in result.records} == {"complete"}
    assert len(result.records) == 4
    assert fake_trial.calls(layout).count("0.2/0") == 2
    assert ("killed by SIGKILL" if fault == "kill" else "RuntimeError: boom in 0.2/0") in text
    assert sorted(state for state, *_ in told(layout)) == ["COMPLETE"] * 4 + ["FAIL"]


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_trial_that_crashes_twice_is_recorded_as_failed(
    write_study: Callable[..., Study], layout: Layout, executor: str
) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, crash={"0.2/0": 9})
    result, text = go(write_study(), layout, executor)
    failed = [record for record in result.records if record.status == "failed"]
    assert [(record.arm, record.seed) for record in failed] == [("strong", 0)]
    assert failed[0].reason == "RuntimeError: boom in 0.2/0"
    log = layout.study("small", "tiny").path / "log" / "strong__seed0.txt"
    assert str(log) in text
    assert log.read_text().count('raise RuntimeError(f"boom in {cell}")') == 2
    assert {verdict.outcome for verdict in result.verdicts if verdict.arm == "strong" and verdict.seed == 0} == {
        "NOT TESTED"
    }
    fake_trial.control(layout)
    again, _ = go(write_study(), layout, executor)
    assert {record.status for record in again.records} == {"complete"}


def test_a_users_mistake_stops_the_study(write_study: Callable[..., Study], layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, user_error=["0.01/0"])
    with pytest.raises(UserError, match=r"weak seed 0: optimiser\.lr is too large"):
        go(write_study(), layout, "processes")


def test_a_fault_before_ppo_is_told_with_its_log(write_study: Callable[..., Study], layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, upstream_crash=True)
    with pytest.raises(Fault, match=r"the reward model exploded; details: .*\.txt"):
        go(write_study(), layout, "processes")
    assert fake_trial.calls(layout, "reward") == ["-", "-"]
    assert fake_trial.calls(layout) == []


def test_a_diverged_trial_is_the_worst_and_never_dropped(write_study: Callable[..., Study], layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, diverge=["0.01/1"])
    result, _ = go(write_study(), layout)
    assert ("COMPLETE", "weak", 1, 0.0) in told(layout)
    assert [record.reason for record in result.records if record.status == "diverged"] == ["entropy 0"]


def test_verdicts_come_from_what_was_recorded(write_study: Callable[..., Study], layout: Layout) -> None:
    text = Path(write_study().source).read_text().replace("before_step: 32", "before_step: 60").replace("0.5", "0.4")
    result, _ = go(write_study(text), layout)
    by_arm = {(verdict.arm, verdict.outcome, verdict.step) for verdict in result.verdicts}
    assert by_arm == {("weak", "FALSIFIED", 48), ("strong", "SURVIVED", None)}


def test_a_second_driver_is_refused(write_study: Callable[..., Study], layout: Layout) -> None:
    folder = layout.study("small", "tiny")
    folder.path.mkdir(parents=True)
    with FileLock(folder.path / ".driver.lock"), pytest.raises(UserError, match="being run by another process"):
        go(write_study(), layout)


def test_a_record_of_other_artifacts_does_not_count(write_study: Callable[..., Study], layout: Layout) -> None:
    """The code changed, and another study has built the new artifacts already."""
    go(write_study(), layout)
    folder, cell = layout.study("small", "tiny"), cells(write_study(), None, SMALL)[0]
    stages = fake_trial.plan_trial(cell.config, layout)
    assert is_finished(folder, cell, stages)
    assert not is_finished(folder, cell, [*stages[:-1], replace(stages[-1], key="0" * 20)])
    assert not is_finished(folder, cell, [*stages[:-1], replace(stages[-1], cached=False)])


def test_a_record_that_was_not_told_is_told_later(write_study: Callable[..., Study], layout: Layout) -> None:
    go(write_study(), layout)
    (layout.study("small", "tiny").path / "optuna.db").unlink()
    go(write_study(), layout)
    assert len(fake_trial.calls(layout)) == 4
    assert sorted(told(layout)) == sorted(("COMPLETE", arm, seed, 0.6) for arm, seed in CELLS)


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from rich.console import Console
from pipeline.run.layout import Layout
from studies.execution import executors, processes
from studies.tracking import study_runs
from studies.execution.driver import run_study
from studies.definition.schema import load_study
processes.PRELOAD = ["studies.execution.processes"]
study_runs.StudySinks._ready = lambda self: False
study_runs.StudySinks.open = lambda self: None
if __name__ == "__main__":
    try:
        study, layout, executor = load_study({study!r}), Layout(Path({root!r})), executors.executor("processes")
        run_study(study, layout, None, {small!r}, executor, 2, Console(), trials="fake_trial")
    except KeyboardInterrupt:
        sys.exit(130)
"""


def start_driver(study: Study, layout: Layout, tmp_path: Path) -> subprocess.Popen[bytes]:
    script = tmp_path / "drive.py"
    path = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]
    script.write_text(SCRIPT.format(path=path, study=study.source, root=str(layout.root), small=SMALL))
    command = [sys.executable, str(script)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=mind_interrupts
    )


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def one_recorded_two_running(layout: Layout) -> bool:
    return len(layout.study("small", "tiny").records()) >= 2 and len(fake_trial.calls(layout)) >= 4


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_driver_takes_its_workers_along_and_the_same_command_continues(
    write_study: Callable[..., Study], layout: Layout, tmp_path: Path, how: signal.Signals
) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, hang=["0.01/1", "0.2/1"])
    driver = start_driver(write_study(), layout, tmp_path)
    wait_for(lambda: one_recorded_two_running(layout))
    finished = {(record.arm, record.seed): record.finished for record in layout.study("small", "tiny").records()}
    if how is signal.SIGINT:
        os.killpg(driver.pid, how)  # as Ctrl-C does: the whole group
    else:
        os.kill(driver.pid, how)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == (130 if how is signal.SIGINT else -how)
    assert errors == b""
    wait_for(lambda: not any(map(alive, fake_trial.pids(layout))), 3.0)
    fake_trial.control(layout)
    result, _ = go(write_study(), layout, "processes")
    assert {(record.arm, record.seed) for record in result.records} == CELLS
    for record in result.records:
        if (record.arm, record.seed) in finished:
            assert record.finished == finished[record.arm, record.seed]
    counts = {cell: fake_trial.calls(layout).count(cell) for cell in ("0.01/0", "0.2/0")}
    assert counts == {"0.01/0": 1, "0.2/0": 1}
    states = sorted((state, arm, seed) for state, arm, seed, _ in told(layout))
    assert [(arm, seed) for state, arm, seed in states if state == "COMPLETE"] == sorted(CELLS)
    assert not [state for state, *_ in states if state in ("RUNNING", "WAITING")]


def test_a_study_that_cannot_fit_is_refused_before_anything_is_written(
    write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def refuse(config: object, label: str) -> None:
        checked.append(label)
        if len(checked) == 2:
            raise UserError(f"{label} cannot fit")

    monkeypatch.setattr(fake_trial, "check_budget", refuse)
    with pytest.raises(UserError, match="strong seed 0 cannot fit"):
        go(write_study(), layout)
    assert checked == ["weak seed 0", "strong seed 0"]  # seeds differ in nothing that costs
    assert not layout.study("small", "tiny").path.exists()


class Abreast(Inline):
    """Asks for as many jobs as there are slots before it runs any."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        while batch := [job for _ in range(slots) if (job := next_job()) is not None]:
            self.batches.append([job.label for job in batch])
            for job in batch:
                emit(self._run(job, emit))


def test_no_job_waits_for_a_stage_that_another_one_builds(
    write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains with reward models of their own share the reference policy, which the first of them builds."""
    abreast = Abreast()
    monkeypatch.setitem(EXECUTORS, "abreast", lambda: abreast)
    result, _ = go(write_study(fake_trial.STUDY + "vary: [labels, reward]\n"), layout, "abreast")
    assert {record.status for record in result.records} == {"complete"}
    assert abreast.batches[0] == ["shared stages of seed 0"]
    assert fake_trial.calls(layout, "reward") == ["-", "-"]


def test_stages_that_a_worker_keys_otherwise_are_refused_and_not_built_for_ever(
    write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node with a GPU, where the driver's machine has none."""

    class Elsewhere(Inline):
        def _run(self, job: Job, emit: Callable[[Event], None]) -> Event:
            event = super()._run(job, emit)
            assert isinstance(event, Finished)
            artifacts = {name: replace(one, key="a1") for name, one in event.outcome.artifacts.items()}
            return Finished(job, replace(event.outcome, artifacts=artifacts))  # type: ignore[type-var]

    monkeypatch.setitem(EXECUTORS, "elsewhere", Elsewhere)
    with pytest.raises(UserError, match="a worker built prompts as a1, and this machine expects"):
        go(write_study(), layout, "elsewhere")
