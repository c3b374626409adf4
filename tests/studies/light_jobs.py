"""Jobs whose trials train nothing, and launchers for tests of what travels through folders."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.config.loading import load_config
from pipeline.run.layout import Layout
from studies.execution.file_executor import Ended, FileExecutor, WorkerState
from studies.execution.job_folder import JobFolder, OutcomeFile
from studies.execution.jobs import Event, Job

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])


def light_job(layout: Layout, number: int = 0, **changes: Any) -> Job:
    """A job of the fake trial, in a folder of its own."""
    config = load_config("tiny", {"train.steps": 64, "train.seed": number, **changes})
    log, folder = layout.root / f"log/{number}.txt", layout.root / f"jobs/{number}"
    return Job(number, f"weak seed {number}", config, layout, "fake_trial:run_trial", log, folder)


def run_jobs(launcher: Any, *jobs: Job, emit: Callable[[Event], None] = lambda event: None) -> list[Event]:
    """The events of these jobs."""
    events, waiting = list[Event](), list(jobs)

    def keep(event: Event) -> None:
        events.append(event)
        emit(event)

    FileExecutor(launcher).run(lambda: waiting.pop(0) if waiting else None, 2, keep)
    return events


def finished(steps: int = 64) -> OutcomeFile:
    """An outcome without artifacts."""
    result = {"artifacts": {}, "status": "complete", "reason": None, "steps": steps}
    return OutcomeFile.of(SimpleNamespace(**result, summary={}, cost={}, execution={}), Path())


class Scripted:
    """A launcher without processes: whenever the driver waits, the next act is done."""

    def __init__(self, *acts: Callable[[], object], outlives: bool = True) -> None:
        self.outlives, self.lag_seconds, self.acts = outlives, 0.0, list(acts)
        self.states: dict[str, WorkerState] = {}
        self.started: list[JobFolder] = []
        self.ended: list[tuple[str, bool]] = []

    def start(self, job: Job, folder: JobFolder) -> str:
        folder.create(job, outlives=self.outlives, environment={})
        self.started.append(folder)
        name = f"worker {len(self.started)}"
        self.states.setdefault(name, "running")
        return name

    def state(self, name: str) -> WorkerState:
        return self.states.get(name, "unknown")

    def wait(self, names: Sequence[str], seconds: float) -> None:
        if self.acts:
            self.acts.pop(0)()
        else:
            time.sleep(0.01)

    def end(self, names: Sequence[str], *, hung: bool = False) -> None:
        for name in names:
            self.ended.append((name, hung))
            self.states[name] = Ended("ended")

    def forget(self, name: str) -> None: ...


class Detached:
    """A launcher on this machine whose workers outlive the driver, as those of a scheduler do. Names are process
    numbers."""

    outlives = True
    lag_seconds = 1.0

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, job: Job, folder: JobFolder) -> str:
        folder.create(job, outlives=True, environment={})
        process = start_worker(folder.path)
        self._processes[str(process.pid)] = process
        return str(process.pid)

    def state(self, name: str) -> WorkerState:
        process = self._processes.get(name)
        if process is not None:
            return "running" if process.poll() is None else Ended(f"ended with {process.returncode}")
        return "unknown"

    def wait(self, names: Sequence[str], seconds: float) -> None:
        time.sleep(0.05)

    def end(self, names: Sequence[str], *, hung: bool = False) -> None:
        for name in names:
            if name in self._processes:
                self._processes[name].kill()
                self._processes[name].wait()

    def forget(self, name: str) -> None:
        if name in self._processes:
            self._processes.pop(name).wait()


def start_worker(folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    """The command that runs one job."""
    return subprocess.Popen(
        [sys.executable, "-m", "studies.execution.worker", str(folder)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        start_new_session=True,
        **options,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Until a condition holds; fails after so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
