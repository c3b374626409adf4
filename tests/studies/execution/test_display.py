from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fake_trial
import pytest
from light_study import SMALL, Write, go, record_of
from rich.console import Console

from pipeline.run.layout import Layout
from pipeline.run.store import try_lock
from studies.claims.falsifiers import Verdict
from studies.execution import status as status_file
from studies.execution import watch as module
from studies.execution.agenda import Agenda
from studies.execution.display import Display
from studies.execution.started import Started
from studies.execution.status import Status, StatusFile, read_status
from studies.execution.watch import Watch

pytestmark = pytest.mark.usefixtures("no_mlflow")

BEGAN = time.time()


def status(label: str = "weak seed 0", began: float = BEGAN, **values: Any) -> Status:
    return Status(label, "host", 1, began, **values)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(**more: Any) -> tuple[Display, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    return Display(Console(file=text, width=200, **more), 4, clock), text, clock


def test_without_a_terminal_progress_is_rare_and_ends_are_told() -> None:
    display, text, clock = shown()
    with display.live:
        display.recorded(1, 4, "trials")
        for step in range(0, 64, 2):
            display.shown(status(stage="train", done=step, total=64, values={"objective/kl_exact_per_token": 0.0123}))
            clock.now += 1
        display.ended(record_of(status="diverged", reason="entropy 0"), 32.0)
    lines = text.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "already recorded: 1 of 4 trials"
    assert lines[1].startswith("weak seed 0: train 0/64  KL/token 0.0123")
    assert lines[2].endswith("left 22s")  # 20 of 64 steps took 10 s
    assert lines[-1] == "weak seed 0: diverged: entropy 0 in 32.0 s  (2 of 4 trials, about 1m04s left)"


def test_lines_of_a_task_are_printed_once_for_each_of_its_processes_and_are_never_markup() -> None:
    display, text, _ = shown()
    for began in (5.0, 5.0, 6.0):
        display.shown(status(began=began, resumed=432, warnings=["[/nonsense] happened"]))
    lines = ["weak seed 0: continues from step 432", "weak seed 0: [/nonsense] happened"]
    assert text.getvalue().splitlines() == lines * 2


def test_the_live_table_shows_running_and_ended_trials_and_how_old_a_status_is() -> None:
    display, text, _ = shown(force_terminal=True)
    display.total = 20
    for number in range(12):
        display.ended(record_of(seed=number), 1.0)
    display.shown(
        status("strong seed 7", time.time(), stage="train", done=32, total=64, values={"policy/entropy": 1.25})
    )
    old = Status("strong seed 8", "host", 1, time.time() - 200, seconds=20.0, stage="train", done=1, total=64)
    display.shown(old)
    display.fallen(Verdict("drift", "strong", 7, "FALSIFIED", 48, 0.5, 3, "0.5 at step 48"))
    Console(file=text, width=200).print(display.table())
    assert "strong seed 7: claim drift FALSIFIED, 0.5 at step 48" in text.getvalue()
    rows = {line[:14].strip(): line for line in text.getvalue().splitlines() if "/64" in line}
    assert "drift 48" in rows["strong     7"]
    assert {"running", "32/64", "1.2500"} <= {*rows["strong     7"].split()}
    assert "running, silent for 3m00s" in rows["strong     8"]
    assert "drift" not in rows["strong     8"]
    assert [name for name in rows if name.startswith("weak")] == [f"weak {n:>7}" for n in range(4, 12)]
    assert "64/64" in rows["weak      11"]  # an ended trial shows the gradient steps that it took
    assert "ended: 12 of 20 trials" in text.getvalue()


def test_a_status_shows_how_far_a_trial_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, written = tmp_path / "status" / "a.json", list[int]()
    assert read_status(path) is None
    file = StatusFile(path, "weak seed 0", False, lambda: written.append(1))
    file.stage("sft", "building", "key")
    file.stage("sft", "built", "key")
    file.follow(tmp_path / "metrics.jsonl")
    file.progress("train", 32, 64, "resumed")
    for step in range(1000):
        file.progress("train", step, 1000)
        file.metrics(step, {"policy/entropy": float(step)})
    assert len(written) < 10
    file.warn("odd")
    found = read_status(path)
    assert found is not None
    assert (found.stages["sft"][0], found.stage, found.done, found.total) == ("built", "train", 999, 1000)
    assert (found.resumed, found.values, found.warnings) == (32, {"policy/entropy": 999.0}, ["odd"])
    file.end("complete")
    assert json.loads(path.read_text())["outcome"] == "complete"
    monkeypatch.setattr(status_file, "write_atomic", Mock(side_effect=OSError(28, "No space left on device")))
    file.end("failed", "a full disk keeps it from nothing")


NAME, LABEL = "weak__seed0", "weak seed 0"


def write(path: Path, first: int, values: list[float]) -> None:
    with path.open("a") as file:
        for step, value in enumerate(values, first):
            file.write(json.dumps({"step": step, "policy/approxkl": value, fake_trial.DRIFT[0]: value}) + "\n")


def test_a_running_trial_is_judged_by_what_it_has_written(
    write_study: Write, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JUDGE_SECONDS", 0.0)
    run = Started(write_study(), "tiny", SMALL, layout, layout.study("small", "tiny"), "fake_trial")
    text, metrics = io.StringIO(), tmp_path / "metrics.jsonl"
    display = Display(Console(file=text, width=300), 4)
    watch = Watch(run, Agenda(run), display)
    watch.begin()
    lock = try_lock(run.folder.lock_file(NAME))
    assert lock is not None
    status = StatusFile(run.folder.status_file(NAME), LABEL, False, lock=NAME)
    status.follow(metrics)

    def news() -> list[str]:
        text.seek(0)
        text.truncate()
        status.warn("odd")  # a new status
        watch.look()
        return [line for line in text.getvalue().splitlines() if not line.endswith("odd")]

    assert news() == []  # it has recorded nothing
    write(metrics, 1, [0.5] * 5)
    assert news() == []  # too little for its health, and no claim has fallen
    write(metrics, 6, [0.1] * 6)
    (line,) = news()
    assert line.startswith(f"{LABEL}: policy/approxkl above 0.02 in 100 % of 11 records")
    write(metrics, 12, [0.6])
    assert news() == [f"{LABEL}: claim drift FALSIFIED, 0.6 at step 12"]
    assert [(one.arm, one.seed, one.metrics) for one in watch.running()] == [("weak", 0, metrics)]
    lock.release()
    assert watch.running() == []
    go(write_study(), layout)
    watch.look()
    assert f"{LABEL}: complete in " in text.getvalue()
    assert "(4 of 4 trials)" in text.getvalue()
