from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_trial
import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.execution import executors, processes
from studies.execution.jobs import Crashed, Event, EventReporter, Finished, Job, Message


def job(layout: Layout, number: int, **changes: Any) -> Job:
    config = load_config("tiny", {"train.steps": 32, "train.seed": number, **changes})
    log, folder = layout.root / f"log/{number}.txt", layout.root / f"jobs/{number}"
    return Job(number, f"weak seed {number}", config, layout, "fake_trial:run_trial", log, folder)


def run(name: str, jobs: list[Job], slots: int, emit: Callable[[Event], None] | None = None) -> list[Event]:
    events: list[Event] = []

    def keep(event: Event) -> None:
        events.append(event)
        if emit:
            emit(event)

    waiting = jobs[:]
    executors.executor(name).run(lambda: waiting.pop(0) if waiting else None, slots, keep)
    return events


@pytest.fixture(autouse=True)
def _root(layout: Layout) -> None:
    layout.root.mkdir(parents=True)


@pytest.mark.parametrize("name", ["inline", "processes"])
def test_both_tell_the_same_story(layout: Layout, name: str) -> None:
    events = run(name, [job(layout, 0)], 1)
    assert isinstance(events[-1], Finished)
    assert (events[-1].outcome.status, events[-1].outcome.steps) == ("complete", 32)
    said = {event.kind for event in events if isinstance(event, Message)}
    assert said == {"stage", "progress", "metrics", "follow"}
    built = [
        event.args[0]
        for event in events
        if isinstance(event, Message) and event.kind == "stage" and event.args[1] == "built"
    ]
    assert built == ["prompts", "sft", "reward", "reference", "train", "evaluate"]
    assert not (layout.root / "log/0.txt").exists()


def test_no_more_than_the_slots_at_once_and_each_in_its_own_process(layout: Layout) -> None:
    fake_trial.control(layout, sleep=0.05)
    active: set[int] = set()
    most = [0]

    def watch(event: Event) -> None:
        if isinstance(event, Message):
            active.add(event.job.number)
        else:
            active.discard(event.job.number)
        most[0] = max(most[0], len(active))

    run("inline", [job(layout, 9)], 1)
    ours = fake_trial.pids(layout)
    run("processes", [job(layout, number) for number in range(4)], 2, watch)
    assert most[0] == 2
    assert len(fake_trial.pids(layout) - ours) == 4


@pytest.mark.parametrize("name", ["inline", "processes"])
def test_faults_come_back_in_words_with_the_traceback_in_the_log(layout: Layout, name: str) -> None:
    fake_trial.control(layout, crash={"0.05/0": 1}, user_error=["0.05/1"])
    events = run(name, [job(layout, number) for number in range(3)], 1)
    ends = {event.job.number: event for event in events if not isinstance(event, Message)}
    assert ends[0] == Crashed(ends[0].job, "RuntimeError: boom in 0.05/0")
    assert ends[1] == Crashed(ends[1].job, "optimiser.lr is too large for this network", user_error=True)
    assert isinstance(ends[2], Finished)
    assert "Traceback" in (layout.root / "log/0.txt").read_text()


def test_a_kill_is_named(layout: Layout) -> None:
    fake_trial.control(layout, kill={"0.05/0": 1})
    end = run("processes", [job(layout, 0)], 1)[-1]
    assert isinstance(end, Crashed)
    assert end.reason == "killed by SIGKILL (often: out of memory)"
    assert processes._exit_in_words(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert processes._exit_in_words(3) == "the process ended with exit code 3 and no result"


def test_an_exception_of_the_driver_ends_every_worker(layout: Layout) -> None:
    fake_trial.control(layout, sleep=30)

    def fail(event: Event) -> None:
        if isinstance(event, Message) and event.kind == "progress":
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run("processes", [job(layout, 0), job(layout, 1)], 2, fail)
    assert time.monotonic() - began < 10
    for pid in fake_trial.pids(layout):
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="there is no such server")
def test_trials_go_on_without_the_server_that_they_were_forked_from(layout: Layout) -> None:
    from multiprocessing.forkserver import _forkserver  # type: ignore[attr-defined]

    fake_trial.control(layout, gated=["0.05/0"])

    def end_server(event: Event) -> None:
        if isinstance(event, Message) and event.kind == "progress" and not (layout.root / "gate").exists():
            os.kill(_forkserver._forkserver_pid, signal.SIGKILL)
            time.sleep(0.5)
            (layout.root / "gate").touch()

    assert isinstance(run("processes", [job(layout, 0)], 1, end_server)[-1], Finished)
    assert fake_trial.calls(layout) == ["0.05/0"]
    assert isinstance(run("processes", [job(layout, 1)], 1)[-1], Finished)


def test_a_server_that_is_killed_while_it_forks_is_asked_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing.context import ForkServerProcess

    start, failed = ForkServerProcess.start, list[str]()

    def killed_once(process: ForkServerProcess) -> None:
        if not failed:
            failed.append(process.name)
            raise EOFError("unexpected EOF")
        start(process)

    monkeypatch.setattr(ForkServerProcess, "start", killed_once)
    events = run("processes", [job(layout, 0)], 1)
    assert failed
    assert isinstance(events[-1], Finished)


def test_ctrl_c_is_the_drivers_business(layout: Layout) -> None:
    fake_trial.control(layout, sleep=0.1)

    def interrupt(event: Event) -> None:
        if isinstance(event, Message) and event.kind == "follow":
            for pid in fake_trial.pids(layout):
                os.kill(pid, signal.SIGINT)

    assert isinstance(run("processes", [job(layout, 0)], 1, interrupt)[-1], Finished)


def test_frequent_messages_are_merged() -> None:
    said: list[tuple[str, tuple[Any, ...]]] = []
    relay = EventReporter(lambda kind, args: said.append((kind, args)))
    for step in range(1000):
        relay.progress("train", step, 1000)
        relay.metrics(step, {"policy/entropy": float(step)})
    relay.progress("train", 1000, 1000)
    assert len(said) < 20
    assert said[-1] == ("progress", ("train", 1000, 1000, ""))
    assert next(args for kind, args in said if kind == "metrics") == (0, {"policy/entropy": 0.0})


def test_unknown_names() -> None:
    with pytest.raises(
        UserError, match=r"no executor 'proceses'; did you mean 'processes'\?; there are: inline, processes, slurm, ray"
    ):
        executors.executor("proceses")


def test_options_of_a_cluster_are_for_clusters() -> None:
    with pytest.raises(
        UserError, match=r"--cluster ray\.yaml: the executor 'processes' has no options; those of slurm, ray do"
    ):
        executors.executor("processes", Path("ray.yaml"))


def test_a_trial_that_hangs_is_ended_while_others_talk_and_its_log_tells_where_it_stood(layout: Layout) -> None:
    fake_trial.control(layout, hang=["0.05/0"], sleep=1.5)
    hanging, talking = job(layout, 0, **{"runtime.hang_minutes": 3 / 60}), job(layout, 1)
    began = time.monotonic()
    ends = {
        event.job.number: event for event in run("processes", [hanging, talking], 2) if not isinstance(event, Message)
    }
    assert ends[0] == Crashed(hanging, "no progress for 0.05 min (runtime.hang_minutes): ended")
    assert isinstance(ends[1], Finished)
    assert time.monotonic() - began < 30
    assert "_misbehave" in (layout.root / "log/0.txt").read_text()


def test_where_a_trial_resumes_is_never_dropped() -> None:
    said: list[tuple[str, tuple[Any, ...]]] = []
    relay = EventReporter(lambda kind, args: said.append((kind, args)))
    relay.progress("sft", 1, 10)
    relay.progress("train", 432, 2048, "resumed")
    assert said[-1] == ("progress", ("train", 432, 2048, "resumed"))


def test_each_trial_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    pool = processes.Processes()
    on_card = load_config("tiny", {"runtime.device": "cuda"})
    assert [pool._take_gpus(on_card) for _ in range(4)] == [["4"], ["6"], ["7"], ["4"]]
    assert pool._take_gpus(load_config("tiny", {"runtime.device": "cuda", "runtime.processes": 2})) == ["6", "7"]
    assert pool._take_gpus(load_config("tiny", {"runtime.device": "cpu"})) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert processes.Processes()._take_gpus(on_card) == []  # nothing to choose
