from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from light_study import record_of
from rich.console import Console

from studies.claims.falsifiers import Verdict
from studies.execution import status as status_file
from studies.execution.display import Display
from studies.execution.status import Status, StatusFile, read_status

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
    with display:
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
