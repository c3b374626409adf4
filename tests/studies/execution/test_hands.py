from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fake_trial
import pytest
from fake_trial import STUDY
from filelock import FileLock
from helpers import copy_upstream, family, kill, repeated, wait_until
from light_study import PYTHONPATH, SMALL, Write, command, go, results

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.run.progress import Reporter
from pipeline.run.store import BuiltElsewhere, Store, try_lock
from pipeline.trial import run_trial
from studies.definition.schema import Study, load_study
from studies.execution import started
from studies.execution.agenda import Agenda, Task
from studies.execution.started import Started, alone, join, start
from studies.execution.status import StatusFile

pytestmark = pytest.mark.usefixtures("no_mlflow")
MANY = STUDY.replace("seeds: [0, 1]", "seeds: [0, 1, 2]\nvary: [labels, reward]")


def run_of(study: Study, layout: Layout, **overrides: object) -> Started:
    given = {**SMALL, **overrides}
    return Started(study, study.profile, given, layout, layout.study(study.name, study.profile), "fake_trial")


def agenda_of(study: Study, layout: Layout) -> Agenda:
    return Agenda(run_of(study, layout))


def test_hands_share_a_study(write_study: Write, layout: Layout, tmp_path: Path) -> None:
    study, here = write_study(MANY), Layout(tmp_path / "here")
    whole = results(go(study, here)[0], here)
    fake_trial.control(layout, sleep=0.05)
    watcher = command("study", study.source, layout, tmp_path)
    wait_until(layout.study("small", "tiny").study_file.exists)
    others = [command("work", "small", layout, tmp_path) for _ in range(2)]
    for process in (watcher, *others):
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, b""), out
    result, _ = go(study, layout)
    assert results(result, layout) == whole
    assert sorted(fake_trial.calls(layout)) == sorted(f"{beta}/{seed}" for beta in (0.01, 0.2) for seed in (0, 1, 2))
    assert len(fake_trial.calls(layout, "reward")) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": STUDY.replace("0.01", "0.02")}, "with another study file"),
        ({"optimiser.lr": 0.1}, r"with other --set values: .* there, .*'optimiser\.lr': 0\.1"),
        ({"precision": "bf16 on a slide rule"}, "with another device or precision"),
        ({"program": "0" * 64}, "with another version of the program"),
    ],
)
def test_hands_that_would_disagree_are_refused(
    write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], words: str
) -> None:
    run = run_of(write_study(), layout)
    with pytest.raises(UserError, match=r"has not been started .* start it with: ablate study small"):
        join(layout, "small", "tiny").__enter__()
    with start(run, print):
        before = run.folder.study_file.read_bytes()
        if "precision" in change:
            monkeypatch.setattr("studies.execution.started.precision", lambda config: change["precision"])
        if "program" in change:
            monkeypatch.setattr("studies.execution.started.code_digest", lambda: change["program"])
        if change.keys() & {"precision", "program"}:
            with pytest.raises(UserError, match=words), join(layout, "small", "tiny"):
                pass
        text = str(change.pop("text", STUDY))
        overrides = {key: value for key, value in change.items() if "." in key}
        other = run_of(write_study(text), layout, **overrides)
        with pytest.raises(UserError, match=words), start(other, print):
            pass
        with pytest.raises(UserError, match="is being run in"), alone(run.folder, "small"):
            pass
        assert run.folder.study_file.read_bytes() == before
    with start(run_of(write_study(text), layout, **overrides), print):
        pass  # nobody is at work any more


def test_the_next_seed_is_prepared_while_trials_are_few(write_study: Write, layout: Layout) -> None:
    """Its shared stages come before a trial that is ready, while fewer than two trials a hand are."""
    layout.root.mkdir(parents=True)
    first, second = agenda_of(write_study(MANY), layout), agenda_of(write_study(MANY), layout)
    one, lock = taken(first)
    assert (one.cell.seed, one.until) == (0, "reference")
    fake_trial.run_trial(one.cell.config, layout, Reporter(), until="sft")
    other, other_lock = taken(second)  # between two stages of seed 0, which the first hand still has
    assert (other.cell.seed, other.until) == (1, "reference")
    other_lock.release()
    fake_trial.run_trial(one.cell.config, layout, Reporter(), until=one.until)
    lock.release()
    two, second_lock = taken(second)  # two trials of seed 0 are ready for one hand
    assert (two.label, two.until) == ("weak seed 0", None)
    three, third_lock = taken(first)  # one for two hands
    assert (three.cell.seed, three.until) == (1, "reference")
    four, fourth_lock = taken(second)
    assert four.label in ("strong seed 0", "shared stages of seed 2")
    assert len({one.lock_file for one in (second_lock, third_lock, fourth_lock)}) == 3


def taken(agenda: Agenda) -> tuple[Task, FileLock]:
    found = agenda.next()
    assert found is not None
    return found


def test_a_hand_waits_for_no_stage_that_another_builds(write_study: Write, layout: Layout) -> None:
    """Nor for a stage of another study: the store's own lock shows it."""
    layout.root.mkdir(parents=True)
    agenda = agenda_of(write_study(), layout)
    (cell, *_) = agenda.open()
    first = fake_trial.plan_trial(cell.config, layout)[0]
    held = try_lock(layout.store / first.stage / ".locks" / str(first.key))
    assert held is not None
    assert agenda.next() is None
    assert not agenda.is_elsewhere()
    with pytest.raises(BuiltElsewhere):
        fake_trial.run_trial(cell.config, layout, Reporter(), wait=False)
    held.release()
    assert agenda.next() is not None


def test_a_builder_whose_lock_was_lost_publishes_nothing(layout: Layout) -> None:
    store = Store(layout.store)

    def taken_over(partial: Path) -> dict[str, object]:
        (partial / ".owner").write_text("another")
        return {}

    with pytest.raises(Exception, match="was taken over by another process: the lock on it was lost"):
        store.build("train", "key", {}, taken_over, resumable=True)
    assert store.find("train", "key") is None


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills without warning")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killing_any_process_at_any_moment_loses_nothing(
    write_study: Write, layout: Layout, tmp_path: Path, seed: int
) -> None:
    """Three hands, of which one or its child is killed again and again."""
    rng, study, here = random.Random(seed), write_study(MANY), Layout(tmp_path / "here")
    whole = results(go(study, here)[0], here)
    fake_trial.control(layout, sleep=0.1)
    hands = [command("study", study.source, layout, tmp_path)]
    wait_until(layout.study("small", "tiny").study_file.exists)
    hands += [command("work", "small", layout, tmp_path) for _ in range(2)]
    for _ in range(4):
        time.sleep(rng.uniform(0.1, 2.0))
        victim = rng.choice(hands)
        kill([rng.choice(family(victim.pid))])
    for process in hands:
        process.communicate(timeout=120)
    result, _ = go(study, layout, "processes")
    assert results(result, layout) == whole


@pytest.mark.slow
def test_a_hand_that_is_asked_to_leave_lets_its_trial_write_a_checkpoint(
    write_study: Write, layout: Layout, tmp_path: Path, smoke_layout: Layout
) -> None:
    """A real trial: SIGUSR1, exit code 75, and the next hand goes on to the same bytes."""
    source = tmp_path / "leaving.yaml"
    source.write_text(STUDY.replace("  strong: {kl.beta: 0.2}\n", "").replace("seeds: [0, 1]", "seeds: [0]"))
    study, steps = load_study(source), {"train.steps": 192, "runtime.checkpoint_updates": 1000}
    for one in (layout, alone := Layout(tmp_path / "alone")):
        copy_upstream(smoke_layout.store, one.store)
    run = Started(study, "smoke", steps, layout, layout.study(study.name, "smoke"))
    with start(run, print):
        pass
    work = [sys.executable, "ablate.py", "work", study.name, "--profile", "smoke", "--out", str(layout.root)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    hand = subprocess.Popen(work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: any(layout.root.glob("store/train/.partial/*/metrics.jsonl")), 240)
    hand.send_signal(signal.SIGUSR1)
    out, _ = hand.communicate(timeout=120)
    assert hand.returncode == 75, out
    assert not run.folder.trial_files()
    assert list(layout.root.glob("store/train/.partial/*/checkpoints/update_*.pt"))
    again = subprocess.run(work, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    (record,) = run.folder.records()
    outcome = run_trial(run.cells()[0].config, alone, Reporter())
    assert record.stages["train"].digest == outcome.artifacts["train"].digest


@pytest.mark.parametrize("works", [True, False])
def test_a_store_without_locks(
    write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    run = run_of(write_study(), layout)

    def flock(file: int, how: int) -> None:
        if not works:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="two processes can hold" if works else "No locks available"), start(run, print):
        pass
    assert not run.folder.study_file.exists()


def test_locks_that_another_machine_holds_have_to_be_seen(
    write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(write_study(), layout)
    monkeypatch.setattr(started, "LOOK_SECONDS", 0.3)
    name = "weak__seed0"
    with start(run, print):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "far")
        status = StatusFile(run.folder.status_file(name), "weak seed 0", False, lock=name)
    with join(layout, "small", "tiny") as joined:
        assert joined.cells() == run.cells(), "a trial that died renews its status no more"
    with repeated(lambda: status.warn("at work"), 0.05):
        for enter in (lambda: start(run, print), lambda: join(layout, "small", "tiny")):
            with pytest.raises(UserError, match=r"locks that far holds are not seen on .* \(flock\)"), enter():
                pass
        lock = try_lock(run.folder.lock_file(name))
        assert lock is not None
        with join(layout, "small", "tiny"):
            lock.release()
    status.end("complete")
    with join(layout, "small", "tiny"):
        pass
