"""The display of trials that other processes run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fake_trial
import pytest
from light_study import SMALL, Write, go
from rich.console import Console

from pipeline.run.layout import Layout
from pipeline.run.store import try_lock
from studies.execution import watch as module
from studies.execution.agenda import Agenda
from studies.execution.display import Display
from studies.execution.started import Started
from studies.execution.status import StatusFile
from studies.execution.watch import Watch

pytestmark = pytest.mark.usefixtures("no_mlflow")
NAME, LABEL = "weak__seed0", "weak seed 0"


def write(path: Path, first: int, values: list[float]) -> None:
    with path.open("a") as file:
        for step, value in enumerate(values, first):
            file.write(json.dumps({"step": step, "policy/approxkl": value, fake_trial.DRIFT[0]: value}) + "\n")


def test_a_running_trial_is_judged_by_what_it_has_written(
    write_study: Write, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.0)
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
