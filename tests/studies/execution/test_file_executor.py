"""What a driver makes of what it finds in the folders of its jobs; no process is started here."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from light_jobs import Scripted, finished, light_job, run_jobs

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.execution import file_executor, job_folder
from studies.execution.file_executor import Ended, WorkerState
from studies.execution.job_folder import JobFolder, OutcomeFile
from studies.execution.jobs import Crashed, Event, Finished, Interrupted, Job, Message


@pytest.fixture
def job(layout: Layout) -> Job:
    return light_job(layout)


@pytest.fixture
def folder(job: Job) -> JobFolder:
    return JobFolder(job.folder)


@pytest.fixture
def left(job: Job, folder: JobFolder) -> JobFolder:
    """The folder of a job that an earlier driver started and that has said something."""
    folder.create(job, outlives=True, environment={})
    folder.name_worker("old worker")
    say(folder, "before")
    return folder


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(file_executor, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(file_executor, "GRACE_SECONDS", 0.3)


def say(folder: JobFolder, *words: str) -> None:
    with folder.events() as send:
        for word in words:
            send("warn", (word,))


def said(events: list[Event]) -> list[str]:
    return [event.args[0] for event in events if isinstance(event, Message)]


def test_events_come_in_order_and_the_folder_goes_when_all_is_told(job: Job, folder: JobFolder) -> None:
    there: list[bool] = []
    launcher = Scripted(lambda: say(folder, "one", "two"), lambda: (say(folder, "three"), folder.end(finished())))
    events = run_jobs(launcher, job, emit=lambda event: there.append(folder.path.exists()))
    assert said(events) == ["one", "two", "three"]
    assert isinstance(events[-1], Finished)
    assert not events[-1].adopted
    assert all(there)
    assert not folder.path.exists()


def test_what_was_written_last_is_read_though_the_worker_has_gone(job: Job, folder: JobFolder) -> None:
    launcher = Scripted()

    def last_words() -> None:
        launcher.states["worker 1"] = Ended("gone")
        say(folder, "last")
        folder.end(finished())

    launcher.acts = [last_words]
    events = run_jobs(launcher, job)
    assert said(events) == ["last"]
    assert isinstance(events[-1], Finished)


def test_a_worker_that_ends_while_the_driver_looks_has_its_outcome(job: Job, folder: JobFolder) -> None:
    class Hurried(Scripted):
        def state(self, name: str) -> WorkerState:
            say(folder, "last")
            folder.end(finished())
            return Ended("gone")

    events = run_jobs(Hurried(), job)
    assert said(events) == ["last"]
    assert isinstance(events[-1], Finished)


def test_what_was_said_between_two_looks_comes_before_the_outcome(
    job: Job, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = JobFolder.outcome

    def late(self: JobFolder, job: Job) -> Finished | Crashed | Interrupted | None:
        say(folder, "last")
        folder.end(finished())
        return outcome(self, job)

    monkeypatch.setattr(JobFolder, "outcome", late)
    events = run_jobs(Scripted(), job)
    assert said(events) == ["last"]
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize(
    ("ended", "event"),
    [
        (Ended("node failed"), lambda job: Crashed(job, "node failed")),
        (Ended("no space", disk_full=True), lambda job: Crashed(job, "no space", disk_full=True)),
        (Ended("scancel", interrupted=True), lambda job: Interrupted(job, "scancel")),
    ],
)
def test_a_worker_that_ends_without_an_outcome(
    job: Job, folder: JobFolder, ended: Ended, event: Callable[[Job], Event]
) -> None:
    launcher = Scripted()
    launcher.acts = [lambda: launcher.states.update({"worker 1": ended})]
    assert run_jobs(launcher, job) == [event(job)]
    assert not folder.path.exists()


def test_a_fault_of_the_driver_keeps_the_outcome(job: Job, folder: JobFolder) -> None:
    def fail(event: Event) -> None:
        raise OSError("the record could not be written")

    with pytest.raises(OSError, match="record"):
        run_jobs(Scripted(lambda: folder.end(finished())), job, emit=fail)
    events = run_jobs(launcher := Scripted(), job)
    assert isinstance(events[0], Finished)
    assert events[0].adopted
    assert launcher.started == []


def test_an_unreadable_outcome_is_one_line(job: Job, folder: JobFolder) -> None:
    (event,) = run_jobs(Scripted(lambda: folder.outcome_file.write_text("{")), job)
    assert event == Crashed(job, f"{folder.outcome_file} is damaged: it is not valid JSON (line 1)")


@pytest.mark.parametrize("outlives", [True, False])
def test_an_interrupted_driver_ends_the_workers_that_do_not_outlive_it(job: Job, outlives: bool) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    launcher = Scripted(interrupt, outlives=outlives)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(launcher, job)
    assert launcher.ended == ([] if outlives else [("worker 1", False)])
    assert job.folder.exists() == outlives


def hanging(layout: Layout) -> Job:
    return light_job(layout, **{"runtime.hang_minutes": 0.3 / 60})


def test_a_silent_trial_is_ended(layout: Layout) -> None:
    job = hanging(layout)
    launcher = Scripted(lambda: JobFolder(job.folder).begin(), outlives=False)
    assert run_jobs(launcher, job) == [Crashed(job, "no progress for 0.005 min (runtime.hang_minutes): ended")]
    assert launcher.ended[0] == ("worker 1", True)


def test_a_worker_that_never_begins_is_told_apart(layout: Layout) -> None:
    job = hanging(layout)
    (event,) = run_jobs(Scripted(), job)
    assert isinstance(event, Crashed)
    assert event.reason.endswith(f"ended; the worker has never opened {job.folder}: can its machine see this path?")


def test_progress_counts_whatever_the_clocks_say_and_a_process_that_lives_does_not(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = hanging(layout)
    folder, began = JobFolder(job.folder), time.monotonic()
    hours = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 - 3600.0 * next(hours))  # the wall clock jumps back at every look

    def live(step: int) -> None:
        folder.begin()
        os.utime(folder.alive_file, (1e9 - 1e6 * step,) * 2)
        if step < 8:
            say(folder, str(step))
        time.sleep(0.1)

    launcher = Scripted(*(lambda step=step: live(step) for step in range(30)), outlives=False)  # type: ignore[misc]
    events = run_jobs(launcher, job)
    assert said(events) == [str(step) for step in range(8)]
    assert events[-1] == Crashed(job, "no progress for 0.005 min (runtime.hang_minutes): ended")
    assert time.monotonic() - began > 1.0


def test_a_worker_that_waits_in_a_queue_need_not_make_progress(layout: Layout) -> None:
    job = hanging(layout)
    launcher = Scripted()
    launcher.states["worker 1"] = "queued"
    launcher.acts = [lambda: time.sleep(0.1)] * 6 + [lambda: JobFolder(job.folder).end(finished())]
    assert isinstance(run_jobs(launcher, job)[-1], Finished)


def test_an_interrupted_worker_that_a_queue_starts_again_goes_on(job: Job, folder: JobFolder) -> None:
    launcher = Scripted()

    def preempted() -> None:
        say(folder, "before")
        folder.end(OutcomeFile(kind="interrupted", reason="stopped by a signal"))
        launcher.states["worker 1"] = "queued"

    def again() -> None:
        launcher.states["worker 1"] = "running"
        folder.begin()
        say(folder, "after")

    launcher.acts = [preempted, lambda: None, again, lambda: folder.end(finished())]
    events = run_jobs(launcher, job)
    assert said(events) == ["before", "after"]
    assert isinstance(events[-1], Finished)
    assert len(launcher.started) == 1


@pytest.mark.parametrize(
    ("ended", "reason"), [(Ended("gone"), "by a signal"), (Ended("scancel by eve", interrupted=True), "scancel by eve")]
)
def test_an_interrupted_worker_that_has_ended_is_interrupted(
    job: Job, folder: JobFolder, ended: Ended, reason: str
) -> None:
    launcher = Scripted(lambda: folder.end(OutcomeFile(kind="interrupted", reason="by a signal")))
    launcher.acts.append(lambda: launcher.states.update({"worker 1": ended}))
    assert run_jobs(launcher, job) == [Interrupted(job, reason)]


class Losing(Scripted):
    """Each worker follows a file, makes some progress or none, and is lost with its machine."""

    def __init__(self, job: Job, losses: int, *, progress: bool) -> None:
        super().__init__()
        self.folder, self.losses, self.progress = JobFolder(job.folder), losses, progress

    def wait(self, names: object, seconds: float) -> None:
        if len(self.started) > self.losses:
            self.folder.end(finished())
            return
        with self.folder.events() as send:
            send("follow", (self.folder.path,))
            if self.progress:
                send("progress", ("train", 1, 2, ""))
        self.states[f"worker {len(self.started)}"] = Ended("node 7 failed", lost=True)


def test_a_lost_worker_is_replaced_as_often_as_there_is_progress(job: Job) -> None:
    events = run_jobs(launcher := Losing(job, 7, progress=True), job)
    assert isinstance(events[-1], Finished)
    assert not events[-1].adopted
    assert len(launcher.started) == 8
    kinds = [event.kind for event in events if isinstance(event, Message)]
    assert (kinds.count("follow"), kinds.count("warn")) == (1, 7)
    assert "node 7 failed; it goes on in a new worker" in [one.args[0] for one in events if isinstance(one, Message)]


def test_a_worker_that_is_lost_again_and_again_is_a_crash(job: Job) -> None:
    events = run_jobs(launcher := Losing(job, 99, progress=False), job)
    assert events[-1] == Crashed(job, "node 7 failed, 4 times before it made progress")
    assert len(launcher.started) == 4


def test_what_a_file_server_shows_late_is_waited_for(job: Job, folder: JobFolder) -> None:
    launcher = Scripted()
    launcher.lag_seconds = 60.0
    launcher.acts = [
        lambda: launcher.states.update({"worker 1": Ended("gone")}),
        *[lambda: None] * 3,
        lambda: (say(folder, "late"), folder.end(finished())),
    ]
    events = run_jobs(launcher, job)
    assert said(events) == ["late"]
    assert isinstance(events[-1], Finished)


def test_a_lag_ends(job: Job) -> None:
    launcher, began = Scripted(), time.monotonic()
    launcher.lag_seconds = 0.3
    launcher.acts = [lambda: launcher.states.update({"worker 1": Ended("gone")})]
    assert run_jobs(launcher, job) == [Crashed(job, "gone")]
    assert 0.3 <= time.monotonic() - began < 30


def test_a_job_that_another_worker_has_goes_on_when_its_own_has_ended(job: Job, folder: JobFolder) -> None:
    """Two were queued for it, since a driver died before it could write down the first one's name."""
    lock: list[contextlib.AbstractContextManager[None]] = []

    def other_works() -> None:
        lock.append(folder.hold())
        lock[0].__enter__()
        launcher.states["worker 1"] = Ended("exit code 2: another worker has it")

    launcher = Scripted(other_works, lambda: None, lambda: (say(folder, "here"), folder.end(finished())))
    events = run_jobs(launcher, job)
    lock[0].__exit__(None, None, None)
    assert said(events) == ["here"]
    assert isinstance(events[-1], Finished)


# What an earlier driver left.


def test_a_worker_that_was_told_to_stop_is_not_taken_over(job: Job, left: JobFolder) -> None:
    left.cancel("no trial of the study needs it any more")
    launcher = Scripted(lambda: left.end(finished()))
    launcher.states["old worker"] = "running"
    events = run_jobs(launcher, job)
    assert isinstance(events[-1], Finished)
    assert launcher.ended == [("old worker", False)]
    assert len(launcher.started) == 1


def test_a_queue_that_knows_the_end_of_a_worker_is_believed(
    job: Job, left: JobFolder, beating: threading.Event
) -> None:
    launcher = Scripted(lambda: JobFolder(job.folder).end(finished()))
    launcher.states["old worker"] = Ended("cancelled")
    assert isinstance(run_jobs(launcher, job)[-1], Finished)
    assert len(launcher.started) == 1


def test_a_worker_that_still_runs_is_taken_over_with_all_that_it_said(job: Job, left: JobFolder) -> None:
    """Here by its lock, which a dead driver's launcher is not needed for."""
    with left.hold():
        launcher = Scripted(lambda: say(left, "after"), lambda: left.end(finished()))
        events = run_jobs(launcher, job)
    assert said(events) == ["before", "after"]
    assert launcher.started == []
    assert launcher.ended == []


def test_a_worker_that_waits_in_a_queue_is_taken_over_by_its_name(job: Job, left: JobFolder) -> None:
    launcher = Scripted(lambda: left.end(finished()))
    launcher.states["old worker"] = "queued"
    assert isinstance(run_jobs(launcher, job)[-1], Finished)
    assert launcher.started == []


def test_a_worker_that_dies_after_it_was_taken_over(job: Job, left: JobFolder) -> None:
    lock = left.hold()
    lock.__enter__()
    launcher = Scripted(lambda: None, lambda: lock.__exit__(None, None, None))
    events = run_jobs(launcher, job)
    assert said(events) == ["before"]
    assert events[-1] == Crashed(job, "its worker has ended without a result")


@pytest.fixture
def beating(left: JobFolder) -> Iterator[threading.Event]:
    """A worker on a machine from which no lock is seen here, and whose clock runs backwards."""
    left.alive_file.write_text("far.example.org 17")
    dead = threading.Event()

    def beat() -> None:
        moment = 1e9
        while not dead.wait(0.02):
            moment -= 100
            with contextlib.suppress(FileNotFoundError):
                os.utime(left.alive_file, (moment, moment))

    thread = threading.Thread(target=beat)
    thread.start()
    yield dead
    dead.set()
    thread.join()


def test_a_worker_on_another_machine_is_known_by_its_heartbeat(
    job: Job, left: JobFolder, beating: threading.Event
) -> None:
    launcher = Scripted(*[lambda: time.sleep(0.1)] * 5, lambda: (say(left, "after"), beating.set()))
    events = run_jobs(launcher, job)
    assert said(events) == ["before", "after"]
    assert events[-1] == Crashed(job, "its worker has ended without a result")
    assert launcher.started == []


@pytest.mark.parametrize("host", ["far.example.org 17", "", "no number", None])
@pytest.mark.parametrize("age", [-1e9, 0.0, 1e8])
def test_a_job_without_a_worker_starts_afresh(job: Job, left: JobFolder, host: str | None, age: float) -> None:
    """Killed with its driver: `alive` is stale, whatever time it shows."""
    if host is not None:
        left.alive_file.write_text(host)
        os.utime(left.alive_file, (time.time() + age,) * 2)
    launcher = Scripted(lambda: say(left, "anew"), lambda: left.end(finished()))
    events = run_jobs(launcher, job)
    assert said(events) == ["anew"]
    assert len(launcher.started) == 1


@pytest.mark.parametrize("kind", ["crashed", "interrupted"])
def test_a_job_that_failed_under_an_earlier_driver_is_tried_again(job: Job, left: JobFolder, kind: str) -> None:
    left.end(OutcomeFile(kind=kind, reason="then"))  # type: ignore[arg-type]
    launcher = Scripted(lambda: left.end(finished()))
    assert isinstance(run_jobs(launcher, job)[-1], Finished)
    assert len(launcher.started) == 1


def test_a_result_of_an_earlier_driver_is_taken(job: Job, left: JobFolder) -> None:
    left.end(finished(steps=48))
    events = run_jobs(launcher := Scripted(), job)
    assert said(events) == ["before"]
    assert isinstance(events[-1], Finished)
    assert events[-1].outcome.steps == 48
    assert launcher.started == []


def test_another_job_in_the_folder_is_ended_and_replaced(job: Job, left: JobFolder, layout: Layout) -> None:
    lock = left.hold()
    lock.__enter__()

    class Obeys(Scripted):
        def end(self, names: object, *, hung: bool = False) -> None:
            assert names == ["old worker"]
            assert left.cancelled() == "another driver has other use for its folder"
            lock.__exit__(None, None, None)

    other = replace(job, config=light_job(layout, **{"kl.beta": 0.3}).config)
    launcher = Obeys(lambda: left.end(finished()))
    events = run_jobs(launcher, other)
    assert said(events) == []
    assert isinstance(events[-1], Finished)
    assert len(launcher.started) == 1


def test_a_finished_job_of_another_configuration_is_no_result(job: Job, left: JobFolder, layout: Layout) -> None:
    left.end(finished(steps=48))
    other = replace(job, config=light_job(layout, **{"kl.beta": 0.3}).config)
    launcher = Scripted(lambda: left.end(finished(steps=64)))
    events = run_jobs(launcher, other)
    assert isinstance(events[-1], Finished)
    assert not events[-1].adopted
    assert len(launcher.started) == 1


@pytest.mark.parametrize("outlives", [True, False])
def test_a_worker_that_does_not_stop_is_named(job: Job, folder: JobFolder, layout: Layout, outlives: bool) -> None:
    """Of another configuration; or one whose driver is dead, and that should have ended with it."""
    folder.create(job, outlives=outlives, environment={})
    folder.begin()
    wanted = replace(job, config=light_job(layout, **{"kl.beta": 0.3}).config) if outlives else job
    launcher = Scripted()
    words = f"{folder.path} is still being worked on by process {os.getpid()} on .*, which was told to stop; run the"
    with folder.hold(), pytest.raises(UserError, match=words):
        run_jobs(launcher, wanted)
    assert launcher.started == []
    assert folder.path.exists()


def test_a_job_of_a_newer_program_is_left_alone(job: Job, left: JobFolder) -> None:
    left.job_file.write_text('{"format": 2}')
    with pytest.raises(UserError, match=r"job\.json has format 2, and this program knows formats up to 1"):
        run_jobs(launcher := Scripted(), job)
    assert launcher.started == []
    assert left.events_file.exists()


@pytest.mark.parametrize("spoil", ["{", "", '{"format": 1, "label": "x"}', None])
def test_a_folder_with_a_damaged_job_starts_afresh(job: Job, left: JobFolder, spoil: str | None) -> None:
    left.job_file.unlink()
    if spoil is not None:
        left.job_file.write_text(spoil)
    launcher = Scripted(lambda: left.end(finished()))
    assert isinstance(run_jobs(launcher, job)[-1], Finished)
    assert len(launcher.started) == 1


def test_a_driver_that_waits_does_not_keep_a_core_busy(job: Job) -> None:
    class Patient(Scripted):
        def wait(self, names: object, seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                JobFolder(job.folder).end(finished())

    looks: list[float] = []
    run_jobs(Patient(), job)
    assert all(0.1 <= seconds <= 0.25 for seconds in looks)


def test_names_of_arms_stay_within_the_folder_of_jobs(layout: Layout) -> None:
    study = layout.study("small", "tiny")
    trial, shared = study.job_folder("a+b=0.5", 3), study.job_folder("a+b=0.5", 3, "reference")
    assert (trial.parent, trial.name) == (study.path / "jobs", "a+b=0.5__seed3")
    assert (shared.parent, shared.name) == (study.path / "jobs", "a+b=0.5__seed3.shared")
    for arm in ("../up", "a/b", ".hidden", "a\nb", "", "x" * 101):
        with pytest.raises(UserError, match="cannot be used"):
            study.job_folder(arm, 0)
    longest = study.job_folder("x" * 100, 10**9, "reference")
    assert len(longest.name) < 200  # file systems take 255
