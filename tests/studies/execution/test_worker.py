"""The command that runs one job: what it leaves, when it stops, and that there is one of them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_trial
import pytest
from light_jobs import Detached, light_job, start_worker, wait_for

from pipeline.errors import Fault
from pipeline.run.layout import Layout, read_sealed, sealed
from pipeline.run.leaving import LEAVE, Leaving
from studies.execution import worker
from studies.execution.executors import Inline
from studies.execution.file_executor import Ended
from studies.execution.job_folder import EventReader, JobFolder
from studies.execution.jobs import Crashed, Finished, Interrupted, Job
from studies.execution.processes import _ended

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="workers are interrupted by a signal")


@pytest.fixture
def job(layout: Layout) -> Job:
    layout.root.mkdir(parents=True)
    return light_job(layout)


@pytest.fixture
def folder(job: Job) -> JobFolder:
    folder = JobFolder(job.folder)
    folder.create(job, outlives=True, environment={"MARK_OF_A_TEST": "yes"})
    return folder


@pytest.fixture
def start(folder: JobFolder) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started = []

    def begin() -> subprocess.Popen[bytes]:
        started.append(start_worker(folder.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit code and standard error."""
    return (process.communicate(timeout=120)[1], process.returncode)[::-1]


def half_way(folder: JobFolder) -> Callable[[], bool]:
    return lambda: folder.events_file.exists() and b'"progress"' in folder.events_file.read_bytes()


def test_a_result_equals_that_of_a_trial_in_this_process(
    job: Job, folder: JobFolder, start: Callable[[], Any], tmp_path: Path
) -> None:
    assert end(start()) == (0, b"")
    said = folder.outcome(job)
    elsewhere = light_job(Layout(tmp_path / "inline"))
    elsewhere.layout.root.mkdir()
    here: list[Any] = []
    Inline().run(iter([elsewhere, None]).__next__, 1, here.append)
    assert isinstance(said, Finished)
    outcome, other = said.outcome, here[-1].outcome
    for name in ("status", "reason", "steps", "summary", "cost", "execution"):
        assert getattr(outcome, name) == getattr(other, name)
    assert {name: one.digest for name, one in outcome.artifacts.items()} == {
        name: one.digest for name, one in other.artifacts.items()
    }
    kinds = [message.kind for message in EventReader(folder.events_file).read(job)]
    assert set(kinds) == {"stage", "progress", "metrics", "follow"}
    assert not folder.is_held()


def test_one_worker_runs_a_job_and_a_second_says_so(
    job: Job, folder: JobFolder, start: Callable[[], Any], layout: Layout
) -> None:
    fake_trial.control(layout, gated=["0.05/0"])
    first = start()
    wait_for(half_way(folder))
    beat = folder.pulse()
    code, errors = end(start())
    assert code == 2
    host, pid = folder.worker_process
    assert pid == first.pid
    assert errors.decode() == f"{folder.path} is being worked on by process {pid} on {host}\n"
    wait_for(lambda: folder.pulse() != beat)
    (layout.root / "gate").touch()
    assert end(first) == (0, b"")
    assert fake_trial.calls(layout) == ["0.05/0"]


@pytest.mark.parametrize("how", ["cancel", "SIGTERM", "SIGINT"])
def test_an_interrupted_worker_stops_and_the_next_one_goes_on(
    job: Job, folder: JobFolder, start: Callable[[], Any], layout: Layout, how: str
) -> None:
    fake_trial.control(layout, gated=["0.05/0"])
    first = start()
    wait_for(half_way(folder))
    if how == "cancel":
        folder.cancel("the time is up")
    else:
        first.send_signal(signal.Signals[how])
    assert end(first) == (130, b"")
    reason = "the time is up" if how == "cancel" else "stopped by a signal"
    assert folder.outcome(job) == Interrupted(job, reason)
    assert not job.log.exists() or "Traceback" not in job.log.read_text()
    folder.cancel_file.unlink(missing_ok=True)
    (layout.root / "gate").touch()
    assert end(start()) == (0, b"")  # as a scheduler starts it again, in the same folder
    assert isinstance(folder.outcome(job), Finished)
    assert fake_trial.calls(layout, "prompts") == ["-"]


@pytest.mark.parametrize(("known", "code"), [(False, 75), (True, 130)])
def test_under_a_scheduler_the_first_signal_asks_the_trial_to_leave_and_the_second_ends_it(
    job: Job,
    folder: JobFolder,
    start: Callable[[], Any],
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    known: bool,
    code: int,
) -> None:
    """The exit code says whether it came further, and the outcome is the scheduler's to tell."""
    if known:  # all stages but the training
        Inline().run(iter([replace(job, until="reference"), None]).__next__, 1, lambda event: None)
    monkeypatch.setenv(LEAVE, str(folder.path / "leave"))
    fake_trial.control(layout, gated=["0.05/0"])
    first = start()
    wait_for(half_way(folder))
    first.send_signal(signal.SIGTERM)
    wait_for((folder.path / "leave").exists)
    time.sleep(0.3)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    assert end(first) == (code, b"")
    assert not folder.outcome_file.exists()
    (folder.path / "leave").unlink()
    (layout.root / "gate").touch()
    assert end(start()) == (0, b"")
    assert isinstance(folder.outcome(job), Finished)


def test_a_trial_that_leaves_has_come_further_and_what_breaks_then_is_no_fault(
    job: Job, folder: JobFolder, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(job: Job, reporter: Any) -> Any:
        raise errors.pop()

    errors: list[BaseException] = [RuntimeError("process 1 of 2 ended with -15"), Leaving(), RuntimeError("boom")]
    monkeypatch.setattr(worker, "call", breaks)
    monkeypatch.setenv(LEAVE, str(folder.path / "leave"))
    codes = [worker.work(folder.path)]
    assert folder.outcome(job) == Crashed(job, "RuntimeError: boom")
    folder.outcome_file.unlink()
    (folder.path / "leave").touch()
    codes += [worker.work(folder.path), worker.work(folder.path)]
    assert codes == [4, 75, 130]
    assert not folder.outcome_file.exists()


def test_a_worker_whose_job_another_one_has_taken_up_stops(
    job: Job, folder: JobFolder, start: Callable[[], Any], layout: Layout
) -> None:
    """A lock need not hold across machines that have lost sight of each other."""
    fake_trial.control(layout, gated=["0.05/0"])
    first = start()
    wait_for(half_way(folder))
    folder.alive_file.write_text("elsewhere 7")
    assert end(first) == (130, b"")
    assert not folder.outcome_file.exists()
    assert folder.worker_process == ("elsewhere", 7)


def test_a_worker_whose_folder_was_taken_away_stops(
    job: Job, folder: JobFolder, start: Callable[[], Any], layout: Layout
) -> None:
    """Also where another job has its place by then: that is another worker's."""
    fake_trial.control(layout, gated=["0.05/0"])
    first = start()
    wait_for(half_way(folder))
    folder.remove()
    folder.create(job, outlives=True, environment={})
    assert end(first) == (130, b"")
    assert not folder.outcome_file.exists()
    assert not folder.alive_file.exists()


@pytest.mark.parametrize(("kind", "code"), [("crash", 4), ("user_error", 2)])
def test_faults_are_told_in_the_outcome_with_the_traceback_in_the_log(
    job: Job, folder: JobFolder, start: Callable[[], Any], layout: Layout, kind: str, code: int
) -> None:
    fake_trial.control(layout, crash={"0.05/0": 1} if kind == "crash" else {}, user_error=["0.05/0"])
    assert end(start()) == (code, b"")
    said = folder.outcome(job)
    assert isinstance(said, Crashed)
    assert said.reason == (
        "RuntimeError: boom in 0.05/0" if code == 4 else "optimiser.lr is too large for this network"
    )
    assert said.user_error == (code == 2)
    assert ("Traceback" in job.log.read_text()) == (code == 4)


def test_what_cannot_be_run_is_one_line(job: Job, folder: JobFolder, tmp_path: Path) -> None:
    content = {**json.loads(folder.job_file.read_text()), "format": 2}
    folder.job_file.write_text(sealed({key: value for key, value in content.items() if key != "content_sha256"}))
    lines = []
    for path in (folder.path, tmp_path / "none"):
        process = start_worker(path, stderr=subprocess.PIPE)
        code, errors = end(process)
        assert code == 2
        lines += errors.decode().splitlines()
    assert len(lines) == 2
    assert "job.json has format 2, and this program knows formats up to 1" in lines[0]
    assert lines[1].endswith("none is not the folder of a job: it has no job.json")
    assert folder.outcome(job) == Crashed(job, lines[0], user_error=True)


def test_one_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main([]) == 2
    assert capsys.readouterr().err == "usage: python -m studies.execution.worker FOLDER\n"


@pytest.fixture
def here(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a worker in this process: what it prints stays where it is, and what it changes is put back."""
    monkeypatch.setattr(worker, "_output_to", lambda path: contextlib.nullcontext())
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    monkeypatch.setenv("MARK_OF_A_TEST", "no")
    before = signal.getsignal(worker.STOP)
    yield
    signal.signal(worker.STOP, before)


@pytest.mark.usefixtures("here")
def test_the_environment_is_that_of_the_job(folder: JobFolder) -> None:
    assert worker.work(folder.path) == 0
    assert os.environ["MARK_OF_A_TEST"] == "yes"
    assert read_sealed(folder.outcome_file)["kind"] == "finished"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["begin", "end", "events"])
def test_a_disk_too_full_for_the_outcome_is_told_by_the_exit_code(
    folder: JobFolder, layout: Layout, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "begin":
        monkeypatch.setattr(JobFolder, "end", full)
    monkeypatch.setattr(JobFolder, name, full)
    code = worker.work(folder.path)
    assert code == worker.DISK_FULL
    ended = _ended(code, layout.root)
    assert ended.disk_full
    assert "run the same command again" in ended.reason


@pytest.mark.usefixtures("here")
def test_a_server_that_fails_at_the_end_is_told_in_the_log(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(JobFolder, "end", fail)
    assert worker.work(folder.path) == 4
    assert capsys.readouterr().err == "the outcome could not be written: [Errno 5] Input/output error\n"


@pytest.mark.usefixtures("here")
def test_a_job_that_was_cancelled_while_it_waited_is_never_begun(job: Job, folder: JobFolder, layout: Layout) -> None:
    folder.cancel("not wanted")
    assert worker.work(folder.path) == 130
    assert folder.outcome(job) == Interrupted(job, "not wanted")
    assert not (layout.root / "calls.txt").exists()
    assert not folder.alive_file.exists()


@pytest.mark.usefixtures("here")
def test_a_folder_that_is_replaced_while_its_lock_is_taken_is_left_to_the_next_worker(
    job: Job, folder: JobFolder, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = JobFolder.hold

    @contextlib.contextmanager
    def replaced(self: JobFolder) -> Iterator[None]:
        with hold(self):
            folder.remove()
            folder.create(job, outlives=True, environment={})
            yield

    monkeypatch.setattr(JobFolder, "hold", replaced)
    assert worker.work(folder.path) == 130
    assert not (layout.root / "calls.txt").exists()
    assert [path.name for path in folder.path.iterdir()] == ["job.json"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_folder_that_goes_while_the_trial_ends_gets_no_outcome(
    job: Job, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    trial = worker.call

    def call(*args: Any) -> Any:
        result = trial(*args)
        folder.remove()
        if replaced:
            folder.create(job, outlives=True, environment={})
        return result

    monkeypatch.setattr(worker, "call", call)
    monkeypatch.setattr(worker, "WATCH_SECONDS", 60.0)
    worker.work(folder.path)
    assert not folder.outcome_file.exists()
    assert folder.path.exists() == replaced


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unspeakable(), "Unspeakable"),
        (RuntimeError("caf\udce9 \x1b[31m"), "RuntimeError: caf? ?[31m"),
        (RuntimeError("x" * 10**6), f"RuntimeError: {'x' * 1986} ..."),
        (SystemExit(0), "SystemExit: 0"),
    ],
)
def test_whatever_a_trial_raises_becomes_a_reason(
    job: Job, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "call", fail)
    assert worker.work(folder.path) == 4
    assert folder.outcome(job) == Crashed(job, reason)


@pytest.mark.parametrize(("taken", "limit"), [(True, "LEAVE_SECONDS"), (False, "STOP_SECONDS")])
def test_a_trial_that_does_not_hear_that_it_is_to_stop_is_ended(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, taken: bool, limit: str
) -> None:
    ended, sent = list[int](), list[int]()
    monkeypatch.setattr(worker, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(worker, "LEAVE_SECONDS", 600.0)
    monkeypatch.setattr(worker, "STOP_SECONDS", 600.0)
    monkeypatch.setattr(worker, limit, 0.01)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(os, "_exit", ended.append)
    watch = worker.Watch(folder, None if taken else folder.mark(), shared=False)
    folder.cancel("enough")
    watch.start()
    watch.join(60)
    assert (sent, ended) == ([worker.STOP], [130])


def test_other_exit_codes_in_words(layout: Layout) -> None:
    assert _ended(4, layout.root) == Ended("the process ended with exit code 4 and no result")
    assert _ended(130, layout.root) == Ended("its job folder was taken away")


def test_a_trial_of_minutes_says_less_often_that_it_is_alive() -> None:
    from studies.execution.jobs import EventReporter

    now, sent = [0.0], list[float]()
    for limit, most in ((5.0, 5.0), (1.0, 1.0)):
        now[0] = 0.0
        sent.clear()
        reporter = EventReporter(lambda kind, args: sent.append(now[0]), limit, lambda: now[0])
        for _ in range(20_000):
            now[0] += 0.05
            reporter.progress("train", 1, 2)
        gaps = [after - before for before, after in itertools.pairwise(sent)]
        assert min(gaps) == pytest.approx(0.25, abs=0.06)
        assert max(gaps) == pytest.approx(most, abs=0.06)


def test_the_command_line_of_a_launcher(job: Job, folder: JobFolder) -> None:
    launcher = Detached()
    name = launcher.start(job, folder)
    wait_for(lambda: folder.outcome_file.exists())
    began = time.monotonic()
    launcher.forget(name)
    assert time.monotonic() - began < 60
    with pytest.raises(Fault):
        JobFolder(folder.path / "none").read()
