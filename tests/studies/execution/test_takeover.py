"""Workers that outlive their driver: the same command takes them over, and nothing is lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fake_trial
import pytest
from helpers import mind_interrupts
from light_jobs import PYTHONPATH, Detached, wait_for
from light_study import SMALL, go, job_folders, results

from pipeline.run.layout import Layout
from studies.definition.schema import Study
from studies.execution.executors import EXECUTORS, Inline
from studies.execution.file_executor import FileExecutor
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Event, Interrupted, Job

pytestmark = [
    pytest.mark.usefixtures("no_mlflow"),
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc"),
]
STUDY = fake_trial.STUDY.replace("seeds: [0, 1]", "seeds: [0]")
CELLS = ["0.01/0", "0.2/0"]
SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from light_jobs import Detached
from pipeline.run.layout import Layout
from studies.execution.driver import run_study
from studies.execution.file_executor import FileExecutor
from studies.definition.schema import load_study
from studies.tracking import study_runs
study_runs.StudySinks._ready = lambda self: False
study_runs.StudySinks.open = lambda self: None
study, layout = load_study(sys.argv[1]), Layout(Path(sys.argv[2]))
try:
    run_study(study, layout, None, {small!r}, FileExecutor(Detached()), 2, Console(), trials="fake_trial")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def detached(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(EXECUTORS, "detached", lambda: FileExecutor(Detached()))
    return "detached"


def begin(study: Study, layout: Layout) -> subprocess.Popen[bytes]:
    """A driver whose two trials stand half-way."""
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, gated=CELLS)
    driver = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(small=SMALL), study.source, str(layout.root)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=mind_interrupts,
    )
    wait_for(lambda: all(b'"progress"' in events(folder) for folder in job_folders(layout)))
    return driver


def events(folder: JobFolder) -> bytes:
    return folder.events_file.read_bytes() if folder.events_file.exists() else b""


@pytest.fixture
def whole(write_study: Callable[..., Study], tmp_path: Path) -> dict[str, bytes]:
    """The results of an uninterrupted study."""
    layout = Layout(tmp_path / "whole")
    return results(go(write_study(STUDY), layout)[0], layout)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_running_workers_are_taken_over(
    write_study: Callable[..., Study], layout: Layout, detached: str, whole: dict[str, bytes], how: signal.Signals
) -> None:
    driver = begin(write_study(STUDY), layout)
    workers = [folder.worker_process[1] for folder in job_folders(layout)]
    os.killpg(driver.pid, how)
    said = driver.communicate(timeout=120)
    assert driver.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL), said
    assert all(folder.is_held() for folder in job_folders(layout))
    (layout.root / "gate").touch()
    result, text = go(write_study(STUDY), layout, detached)
    assert results(result, layout) == whole
    assert sorted(fake_trial.calls(layout)) == CELLS
    assert set(workers) < fake_trial.pids(layout)
    assert "weak seed 0: complete" in text
    assert not layout.study("small", "tiny").jobs.exists()


def test_dead_workers_are_replaced_and_go_on(
    write_study: Callable[..., Study], layout: Layout, detached: str, whole: dict[str, bytes]
) -> None:
    driver = begin(write_study(STUDY), layout)
    for pid in (driver.pid, *(folder.worker_process[1] for folder in job_folders(layout))):
        os.kill(pid, signal.SIGKILL)
    driver.communicate(timeout=120)
    wait_for(lambda: not any(folder.is_held() for folder in job_folders(layout)))
    (layout.root / "gate").touch()
    result, _ = go(write_study(STUDY), layout, detached)
    assert results(result, layout) == whole
    assert sorted(fake_trial.calls(layout)) == sorted([*CELLS, *CELLS])
    assert fake_trial.calls(layout, "reward") == ["-"]


@pytest.mark.slow
def test_results_that_came_without_a_driver_are_taken_unless_the_store_has_changed(
    write_study: Callable[..., Study], layout: Layout, detached: str, whole: dict[str, bytes]
) -> None:
    driver = begin(write_study(STUDY), layout)
    driver.kill()
    driver.communicate(timeout=120)
    (layout.root / "gate").touch()
    wait_for(lambda: all(folder.outcome_file.exists() for folder in job_folders(layout)))
    lost = sorted((layout.store / "evaluate").glob("*/manifest.json"))[0]
    lost.unlink()
    result, text = go(write_study(STUDY), layout, detached)
    assert results(result, layout) == whole
    assert sorted(fake_trial.calls(layout)) == CELLS  # the training is there
    assert text.count("code or store have changed since it was begun; run again") == 1


def test_a_driver_that_dies_takes_other_workers_along_with_their_jobs(
    write_study: Callable[..., Study], layout: Layout
) -> None:
    """What a dead driver's local workers leave is no hindrance: here the job of one that is gone."""
    layout.root.mkdir(parents=True)
    study = layout.study("small", "tiny")
    for arm in ("weak", "strong"):
        folder = JobFolder(study.job_folder(arm, 0))
        folder.path.mkdir(parents=True)
        folder.events_file.write_text('["warn", "of a trial that was killed"]\n["warn", "tor')
    result, text = go(write_study(STUDY), layout, "processes")
    assert {record.status for record in result.records} == {"complete"}
    assert "killed" not in text
    assert not study.jobs.exists()


class Stopped(Inline):
    """Trials of one arm are stopped from outside."""

    def __init__(self, labels: str) -> None:
        self.labels = labels

    def _run(self, job: Job, emit: Callable[[Event], None]) -> Event:
        return Interrupted(job, "scancel") if job.label.startswith(self.labels) else super()._run(job, emit)


@pytest.mark.parametrize(("labels", "done"), [("weak", {"strong"}), ("shared", set())])
def test_an_interrupted_trial_is_no_fault_and_the_others_go_on(
    write_study: Callable[..., Study],
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    labels: str,
    done: set[str],
) -> None:
    monkeypatch.setitem(EXECUTORS, "stopped", lambda: Stopped(labels))
    with pytest.raises(KeyboardInterrupt):
        go(write_study(), layout, "stopped")
    records = layout.study("small", "tiny").records()
    assert {record.arm for record in records} == done
    assert {record.seed for record in records} == ({0, 1} if done else set())
    result, _ = go(write_study(), layout)
    assert len(result.records) == 4
    assert {record.status for record in result.records} == {"complete"}
    assert sorted(fake_trial.calls(layout)) == ["0.01/0", "0.01/1", "0.2/0", "0.2/1"]


def test_jobs_that_nobody_wants_any_more_are_cleared(write_study: Callable[..., Study], layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    forgotten = JobFolder(layout.study("small", "tiny").job_folder("dropped", 0))
    forgotten.path.mkdir(parents=True)
    go(write_study(), layout)
    assert not forgotten.path.exists()
