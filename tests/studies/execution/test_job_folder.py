"""What travels through the folder of a job arrives as it was sent, whole, and once."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from light_jobs import finished, light_job

from pipeline.errors import Damaged, Gone, UserError
from pipeline.run.layout import Layout, read_json, sealed
from pipeline.run.store import Artifact
from studies.execution import job_folder
from studies.execution.job_folder import EventReader, JobFile, JobFolder, OutcomeFile, sweep
from studies.execution.jobs import Crashed, Finished, Interrupted, Job, Message


@pytest.fixture
def job(layout: Layout) -> Job:
    return light_job(layout)


@pytest.fixture
def folder(job: Job) -> JobFolder:
    folder = JobFolder(job.folder)
    folder.create(job, outlives=True, environment={"CUDA_VISIBLE_DEVICES": "1"})
    return folder


def texts(messages: list[Message]) -> list[Any]:
    return [message.args[0] for message in messages]


def test_events_arrive_as_they_were_sent(job: Job, folder: JobFolder) -> None:
    sent: list[tuple[Any, tuple[Any, ...]]] = [
        ("stage", ("sft", "built", "key\nü")),
        ("progress", ("train", 16, 64, "")),
        ("metrics", (16, {"policy/entropy": np.float32(0.5), "objective/kl": 1e-300})),
        ("follow", (Path("/a/metrics.jsonl"),)),
        ("warn", ("slow",)),
    ]
    reader = EventReader(folder.events_file)
    assert reader.read(job) == []
    with folder.events() as send:
        for kind, args in sent:
            send(kind, args)
    assert reader.read(job) == [Message(job, kind, args) for kind, args in sent]
    assert reader.read(job) == []


def test_a_torn_line_waits_until_it_is_whole(job: Job, folder: JobFolder) -> None:
    reader, whole = EventReader(folder.events_file), b'["warn", "one"]\n["warn", "two"]\n'
    for end in range(len(whole)):
        folder.events_file.write_bytes(whole[:end])
        assert len(reader.read(job)) == (1 if end == 16 else 0)
    folder.events_file.write_bytes(whole)
    assert texts(reader.read(job)) == ["two"]


def test_the_next_worker_closes_a_line_that_the_last_one_left_torn(job: Job, folder: JobFolder) -> None:
    folder.events_file.write_bytes(b'["warn", "one"]\n["warn", "tw')
    with folder.events() as send:
        send("warn", ("three",))
    assert texts(EventReader(folder.events_file).read(job)) == ["one", "three"]


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"\xff",
        b"[" * 5000,
        b'["run", "rm"]',
        b'["warn"]',
        b'["warn", "a", "b"]',
        b'["warn", 3]',
        b'["follow", 3]',
        b"7",
        b'["progress", "train", "1", 2, ""]',
        b'["metrics", 1, {"a": "b"}]',
        b'["metrics", 1, []]',
        b'["stage", "train", null, ""]',
    ],
)
def test_a_damaged_line_is_passed_over(job: Job, folder: JobFolder, line: bytes) -> None:
    folder.events_file.write_bytes(b'["warn", "one"]\n' + line + b'\n["warn", "two"]\n')
    assert texts(EventReader(folder.events_file).read(job)) == ["one", "two"]


def test_events_that_were_cut_off_do_not_come_twice(job: Job, folder: JobFolder) -> None:
    reader = EventReader(folder.events_file)
    folder.events_file.write_bytes(b'["warn", "one"]\n["warn", "two"]\n')
    reader.read(job)
    folder.events_file.write_bytes(b'["warn", "one"]\n')
    assert reader.read(job) == []
    with folder.events() as send:
        send("warn", ("three",))
    assert texts(reader.read(job)) == ["three"]


def test_a_metrics_file_is_followed_once_however_often_the_worker_starts(job: Job, folder: JobFolder) -> None:
    reader = EventReader(folder.events_file)
    for _ in range(2):
        with folder.events() as send:
            send("follow", (Path("a"),))
    with folder.events() as send:
        send("follow", (Path("b"),))
    assert texts(reader.read(job)) == [Path("a"), Path("b")]


def test_a_driver_that_takes_over_hears_the_last_of_what_is_frequent(job: Job, folder: JobFolder) -> None:
    with folder.events() as send:
        for step in (16, 32):
            send("warn", (f"at {step}",))
            send("metrics", (step, {}))
            send("progress", ("train", step, 64, ""))
    reader = EventReader(folder.events_file)
    assert [(one.kind, one.args[0]) for one in reader.catch_up(job)] == [
        ("warn", "at 16"),
        ("warn", "at 32"),
        ("metrics", 32),
        ("progress", "train"),
    ]
    assert reader.read(job) == []


def test_a_job_comes_out_as_it_went_in(job: Job, folder: JobFolder) -> None:
    content = folder.read()
    assert replace(content.job(folder.path), number=job.number) == job
    assert (content.outlives, content.environment) == (True, {"CUDA_VISIBLE_DEVICES": "1"})


def test_only_the_same_work_is_the_same_job(job: Job, folder: JobFolder, layout: Layout) -> None:
    written = folder.read()
    assert written.is_for(replace(job, number=7))
    assert not written.is_for(replace(job, until="reward"))
    assert not written.is_for(replace(job, config=light_job(layout, **{"kl.beta": 0.3}).config))
    assert not written.is_for(replace(job, config=light_job(layout, **{"caps.wall_clock_h": 9.0}).config))
    assert not written.is_for(replace(job, layout=Layout(layout.root / "elsewhere")))


def rewrite(path: Path, **changes: Any) -> None:
    content = {key: value for key, value in read_json(path).items() if key != "content_sha256"}
    path.write_text(sealed({**content, **changes}))


def test_a_newer_program_is_named_in_one_line(job: Job, folder: JobFolder) -> None:
    folder.end(finished())
    rewrite(folder.job_file, format=2, priority="high")
    rewrite(folder.outcome_file, format=2)
    with pytest.raises(UserError, match=r"job\.json has format 2, and this program knows formats up to 1: use the new"):
        folder.read()
    said = folder.outcome(job)
    assert isinstance(said, Crashed)
    assert said.reason.startswith(f"{folder.outcome_file} has format 2, and this program")


def test_a_configuration_of_another_version_is_refused(folder: JobFolder) -> None:
    config = folder.read().config
    for changed in ({**config, "colour": "red"}, {key: value for key, value in config.items() if key != "caps"}):
        rewrite(folder.job_file, config=changed)
        with pytest.raises(UserError, match="holds a configuration of another version of this program"):
            folder.read().job(folder.path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "not valid JSON"),
        (lambda path: path.write_text(""), "not valid JSON"),
        (lambda path: path.write_text("[1]"), "holds no mapping"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text(path.read_text().replace("64", "65")), "checksum differs"),
        (lambda path: rewrite(path, kind="splendid"), "kind: Input should be 'finished', 'crashed' or 'interrupted'"),
        (lambda path: rewrite(path, format="x"), "format: Input should be 1"),
        (lambda path: (path.unlink(), path.mkdir()), "it is a folder"),
    ],
)
def test_an_unreadable_outcome_is_a_crash_in_one_line(
    job: Job, folder: JobFolder, spoil: Callable[[Path], object], why: str
) -> None:
    folder.end(finished())
    assert isinstance(folder.outcome(job), Finished)
    spoil(folder.outcome_file)
    said = folder.outcome(job)
    assert isinstance(said, Crashed)
    assert not said.user_error
    assert said.reason.startswith(f"{folder.outcome_file} is damaged: ")
    assert why in said.reason
    assert "\n" not in said.reason


def test_an_outcome_of_another_job_is_none(job: Job, folder: JobFolder, layout: Layout) -> None:
    """A worker wrote it that could not see yet that its folder had been replaced."""
    other = light_job(layout, **{"kl.beta": 0.3})
    folder.end(finished().model_copy(update={"work": JobFile.of(other, outlives=True, environment={}).work}))
    assert folder.outcome(job) is None
    folder.end(finished().model_copy(update={"work": folder.read().work}))
    assert isinstance(folder.outcome(job), Finished)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_file_server_that_is_away_is_no_end(
    job: Job, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder.end(finished())
    say = EventReader(folder.events_file)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        patch.setattr(Path, "read_text", fail)
        assert folder.outcome(job) is None
        assert say.read(job) == []
    assert isinstance(folder.outcome(job), Finished)


def test_a_mark_that_the_server_no_longer_knows_is_that_of_a_folder_that_has_gone(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = [errno.ESTALE]

    def fail(*_: object, **__: object) -> None:
        raise OSError(number[0], os.strerror(number[0]))

    monkeypatch.setattr(JobFolder, "job_file", SimpleNamespace(stat=fail))
    assert folder.mark() is None
    number[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        folder.mark()


@pytest.mark.parametrize(
    ("text", "as_told"),
    [
        ("plain ü", "plain ü"),
        ("two\nlines", "two\nlines"),
        ("\udcff", "?"),
        ("\x1b[2J\x07", "?[2J?"),
        ("a\tb", "a b"),
        ("x" * 9000, "x" * job_folder.REASON_LENGTH + " ..."),
    ],
)
def test_a_reason_is_fit_for_files_and_terminals(job: Job, folder: JobFolder, text: str, as_told: str) -> None:
    folder.end(OutcomeFile.without_result("crashed", text))
    assert folder.outcome(job) == Crashed(job, as_told)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_no_record_takes_is_refused(layout: Layout, value: float) -> None:
    result = SimpleNamespace(
        artifacts={}, status="complete", reason=None, steps=1, summary={"eval/x": value}, cost={}, execution={}
    )
    with pytest.raises(ValueError, match="finite"):
        OutcomeFile.of(result, layout.root)


def test_a_result_comes_out_as_it_went_in(job: Job, folder: JobFolder, layout: Layout) -> None:
    artifact = Artifact("train", "0a", layout.store / "train" / "0a", "d1", {"large": "meta"}, "2025-01-01T00:00:00")
    numbers = {"summary": {"eval/win_rate": 0.1 + 0.2}, "cost": {"wall_s": 3.0}, "execution": {"device": "cpu"}}
    result = SimpleNamespace(artifacts={"train": artifact}, status="budget", reason="cap", steps=16, **numbers)
    folder.end(OutcomeFile.of(result, layout.root))
    said = folder.outcome(job)
    assert isinstance(said, Finished)
    assert vars(said.outcome) == {**vars(result), "artifacts": {"train": replace(artifact, meta={})}}


def test_other_ends_come_out_as_they_went_in(job: Job, folder: JobFolder) -> None:
    folder.end(OutcomeFile(kind="crashed", reason="boom", user_error=True))
    assert folder.outcome(job) == Crashed(job, "boom", user_error=True)
    folder.end(OutcomeFile(kind="crashed", reason="full", disk_full=True))
    assert folder.outcome(job) == Crashed(job, "full", disk_full=True)
    folder.end(OutcomeFile(kind="interrupted", reason="scancel"))
    assert folder.outcome(job) == Interrupted(job, "scancel")


def test_one_worker_at_a_time(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "LOCK_SECONDS", 0.1)
    assert not folder.is_held()
    with folder.hold():
        folder.begin()
        assert folder.is_held()
        words = f"{folder.path} is being worked on by process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(UserError, match=words), folder.hold():
            pass
    assert not folder.is_held()


def test_a_worker_that_waits_for_a_folder_that_goes_leaves_nothing(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = folder.hold()
    lock.__enter__()
    monkeypatch.setattr(time, "sleep", lambda seconds: folder.remove())
    with pytest.raises(UserError, match="not the folder of a job"), folder.hold():
        pass
    lock.__exit__(None, None, None)
    assert not folder.path.exists()


def test_the_lock_of_a_machine_that_was_lost_is_waited_for(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "LOCK_SECONDS", 0.0)
    folder.alive_file.write_text("far.example.org 17")
    lock, looks = folder.hold(), list[float]()
    lock.__enter__()

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            lock.__exit__(None, None, None)

    monkeypatch.setattr(time, "sleep", sleep)
    with folder.hold():
        assert len(looks) == 3


def test_who_works_is_told_in_one_step(folder: JobFolder) -> None:
    """A driver that reads an empty `alive` takes the worker for none."""
    folder.alive_file.write_text("far.example.org 17")
    with folder.alive_file.open() as before:
        folder.begin()
        assert before.read() == "far.example.org 17"
    assert folder.worker_process == (socket.gethostname(), os.getpid())


@pytest.mark.parametrize("shared", [True, False])
def test_events_reach_a_file_server_with_the_heartbeat(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(str(Path(f"/proc/self/fd/{file}").readlink())))
    folder.begin()
    folder.events_file.touch()
    folder.beat(shared=shared)
    assert synced == [str(folder.events_file)] * shared


def test_a_folder_without_a_job_is_refused_and_not_created(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "none")
    with pytest.raises(UserError, match=r"none is not the folder of a job: it has no job\.json"), folder.hold():
        pass
    assert not folder.is_held()
    with pytest.raises(Gone):
        folder.read()
    assert not folder.path.exists()


def test_a_damaged_job_says_so(folder: JobFolder) -> None:
    folder.job_file.write_text(folder.job_file.read_text().replace("weak", "meek"))
    with pytest.raises(Damaged, match="checksum differs"):
        folder.read()


YEAR = 365 * 86400.0


@pytest.mark.parametrize("jump", [-YEAR, -1.0, 1.0, YEAR])
def test_a_heartbeat_is_one_whatever_the_clock_of_the_other_machine_shows(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    monkeypatch.setattr(job_folder, "HEARTBEAT_SECONDS", 0.5)
    folder.alive_file.write_text("far.example.org 17")
    assert folder.is_elsewhere
    beat = threading.Timer(0.1, lambda: os.utime(folder.alive_file, (time.time() + jump,) * 2))
    beat.start()
    assert folder.is_beating()
    beat.join()


@pytest.mark.parametrize("age", [-YEAR, 0.0, YEAR])
def test_a_time_that_does_not_change_is_no_heartbeat(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    monkeypatch.setattr(job_folder, "HEARTBEAT_SECONDS", 0.05)
    folder.alive_file.write_text("far.example.org 17")
    os.utime(folder.alive_file, (time.time() + age,) * 2)
    assert not folder.is_beating()


def test_a_heartbeat_of_this_machine_needs_no_look(folder: JobFolder) -> None:
    folder.begin()
    began = time.monotonic()
    assert not folder.is_beating()
    assert time.monotonic() - began < job_folder.HEARTBEAT_SECONDS


def test_a_job_that_was_replaced_has_another_mark(job: Job, folder: JobFolder) -> None:
    mark = folder.mark()
    assert mark is not None
    assert folder.mark() == mark
    folder.remove()
    assert folder.mark() is None
    folder.create(job, outlives=True, environment={})
    assert folder.mark() not in (mark, None)


def test_why_a_worker_is_to_stop(folder: JobFolder) -> None:
    assert folder.cancelled() is None
    folder.cancel("enough")
    assert folder.cancelled() == "enough"
    folder.cancel_file.write_text("")  # made by hand
    assert folder.cancelled() == "cancelled"
    JobFolder(folder.path / "gone").cancel("no folder, no matter")


def test_sweeping_leaves_only_what_somebody_works_on(job: Job, folder: JobFolder, layout: Layout) -> None:
    other = JobFolder(layout.root / "jobs" / ".half-removed")
    other.create(job, outlives=True, environment={})
    stuck = layout.root / "jobs" / f"{job_folder.ASIDE}0" / ".nfs0001"
    stuck.parent.mkdir()
    stuck.touch()
    with folder.hold():
        sweep(layout.root / "jobs")
        assert not stuck.parent.exists()
        assert folder.cancelled() == "no trial of the study needs it any more"
        assert not other.path.exists()
    sweep(layout.root / "jobs")
    assert not (layout.root / "jobs").exists()
    sweep(layout.root / "jobs")


def test_a_folder_that_cannot_be_deleted_yet_is_out_of_the_way(
    job: Job, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server keeps files that are open here under other names."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(2):
            folder.create(job, outlives=True, environment={})
            folder.remove()
    assert not folder.path.exists()
    assert len(list(folder.path.parent.iterdir())) == 2
    sweep(folder.path.parent)
    assert not folder.path.parent.exists()


def test_content_is_json(folder: JobFolder) -> None:
    folder.end(finished())
    for path in (folder.job_file, folder.outcome_file):
        assert json.loads(path.read_text())["format"] == 1
