"""What travels through the folder of a job arrives as it was sent, whole, and once."""

from __future__ import annotations

import json
import os
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
from studies.execution.job_folder import EventReader, JobFolder, OutcomeFile, sweep
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
    "line", [b"{}", b"\xff", b"[" * 5000, b'["run", "rm"]', b'["warn"]', b'["warn", "a", "b"]', b'["follow", 3]', b"7"]
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
        (lambda path: (path.unlink(), path.mkdir()), "is a directory"),
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
    with folder.hold():
        sweep(layout.root / "jobs")
        assert folder.cancelled() == "no trial of the study needs it any more"
        assert not other.path.exists()
    sweep(layout.root / "jobs")
    assert not (layout.root / "jobs").exists()
    sweep(layout.root / "jobs")


def test_content_is_json(folder: JobFolder) -> None:
    folder.end(finished())
    for path in (folder.job_file, folder.outcome_file):
        assert json.loads(path.read_text())["format"] == 1
