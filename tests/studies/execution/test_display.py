from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from pipeline.run.layout import TrialRecord
from pipeline.run.symptoms import Health, Symptom
from studies.claims.falsifiers import Verdict
from studies.execution.display import Display, _duration
from studies.execution.status import Status

WEAK, STRONG = "weak__seed0", "strong__seed7"


def status(label: str = "weak seed 0", **values: Any) -> Status:
    return Status(label, "host", 1, "owner", time.time(), **values)


def record(arm: str = "weak", seed: int = 0, outcome: str = "complete", reason: str | None = None) -> TrialRecord:
    empty: dict[str, Any] = {"config": {}, "config_digest": "", "stages": {}, "summary": {}, "cost": {}}
    named: dict[str, Any] = {"study": "s", "profile": "tiny", "arm": arm, "seed": seed, "environment": {}}
    return TrialRecord.model_validate(
        {**named, **empty, "status": outcome, "reason": reason, "steps": 64, "finished": ""}
    )


def names(verdict: Verdict) -> str:
    return f"{verdict.arm}__seed{verdict.seed}"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(width: int = 200, **more: Any) -> tuple[Display, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    return Display(Console(file=text, width=width, **more), 4, clock), text, clock


def test_without_a_terminal_progress_is_rare_and_ends_are_told() -> None:
    display, text, clock = shown()
    with display:
        display.recorded(1, 4, "trials")
        for step in range(0, 64, 2):
            display.shown(
                WEAK, status(stage="train", done=step, total=64, values={"objective/kl_exact_per_token": 0.0123})
            )
            clock.now += 1
        display.ended(WEAK, record(outcome="diverged", reason="entropy 0"), 32.0)
    lines = text.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "already recorded: 1 of 4 trials"
    assert lines[1].startswith("weak seed 0: train 0/64  KL/token 0.0123")
    assert lines[2].endswith("left 22s")  # 20 of 64 steps took 10 s
    assert lines[-1] == "weak seed 0: diverged: entropy 0 in 32.0 s  (2 of 4 trials, about 1m04s left)"


def test_lines_of_a_trial_are_printed_once_for_each_of_its_processes() -> None:
    display, text, _ = shown()
    for _ in range(2):
        display.shown(WEAK, status(stage="train", resumed=432, done=432, total=2048, warnings=["odd"]))
    display.shown(WEAK, Status("weak seed 0", "host", 2, "another", 0.0, resumed=512))
    lines = text.getvalue().splitlines()
    assert [line for line in lines if "train" not in line] == [
        "weak seed 0: continues from step 432",
        "weak seed 0: odd",
        "weak seed 0: continues from step 512",
    ]


def test_what_users_name_is_never_markup() -> None:
    display, text, _ = shown()
    display.shown("x", status("[red]x[/red] seed 0", warnings=["[/nonsense] happened"]))
    display.line("[bold]boom")
    assert text.getvalue().splitlines() == ["[red]x[/red] seed 0: [/nonsense] happened", "[bold]boom"]


def test_shared_stages_are_lines_with_their_time() -> None:
    display, text, _ = shown()
    stages: dict[str, list[Any]] = {"prompts": ["cached", "k1", 0.0]}
    display.shown("s", status("shared stages of seed 3", shared=True, stages={**stages, "sft": ["building", "k2", 0]}))
    display.shown("s", status("shared stages of seed 3", shared=True, stages={**stages, "sft": ["built", "k2", 2.5]}))
    assert text.getvalue().splitlines() == [
        "prompts   cached (k1) of seed 3",
        "sft       built in 2.5 s (k2) of seed 3",
    ]


def test_the_live_table_shows_running_and_ended_trials_and_how_old_a_status_is() -> None:
    display, text, _ = shown(140, force_terminal=True)
    display.total = 20
    for number in range(12):
        display.ended(f"weak__seed{number}", record(seed=number), 1.0)
    display.shown(STRONG, status("strong seed 7", stage="train", done=32, total=64, values={"policy/entropy": 1.25}))
    old = Status("strong seed 8", "host", 1, "o", time.time() - 200, seconds=20.0, stage="train", done=1, total=64)
    display.shown("strong__seed8", old)
    Console(file=text, width=140).print(display._render())
    table = text.getvalue()
    assert "ended: 12 of 20 trials" in table
    assert "32/64" in table
    assert "64/64" in table  # an ended trial shows the gradient steps that it took
    assert "1.2500" in table
    assert table.count("complete") == 8
    assert "running, silent for 3m00s" in table


def test_a_claim_that_falls_is_a_line_and_a_column_of_the_trial_that_it_is_about() -> None:
    display, text, _ = shown(160, force_terminal=True)
    display.shown(WEAK, status(stage="train", done=64, total=128))
    display.shown("base__seed0", status("base seed 0", stage="train", done=64, total=128))
    display.fallen("base__seed0", [Verdict("drift", "weak", 0, "FALSIFIED", 48, 0.5, 3, "0.5 at step 48")], names)
    Console(file=text, width=160).print(display._render())
    assert "weak seed 0: claim drift FALSIFIED, 0.5 at step 48" in text.getvalue()
    rows = {line.split()[0]: line for line in text.getvalue().splitlines() if "64/128" in line}
    assert "drift 48" in rows["weak"]
    assert "drift" not in rows["base"]


APPROXKL = Symptom("policy/approxkl", "above", 0.02, 30, 60, 7, "too far", "lower optimiser.lr")
ENTROPY = Symptom("policy/entropy", "below", 0.1, 30, 60, 9, "it hardly chooses", "raise kl.beta")


def test_a_series_that_leaves_its_band_is_one_line_and_a_word() -> None:
    display, text, clock = shown()
    for symptoms in ((APPROXKL,), (APPROXKL, ENTROPY), ()):
        display.shown(WEAK, status())
        display.health(WEAK, "weak seed 0", Health(symptoms, ("policy/approxkl", "policy/entropy")))
        clock.now += 20
        display.shown(WEAK, status(stage="train", done=32, total=64))
    lines = text.getvalue().splitlines()
    assert (
        lines[0]
        == "weak seed 0: policy/approxkl above 0.02 in 50 % of 60 records, first at step 7. Likely cause: too far."
        " Try: lower optimiser.lr."
    )
    assert lines[1].endswith("  unhealthy: approxkl")
    assert lines[2].startswith("weak seed 0: policy/entropy below 0.1 in 50 %")
    assert lines[3].endswith("  unhealthy: approxkl, entropy")
    assert "unhealthy" not in lines[4]
    assert len(lines) == 5


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (5.9, "5s"), (125, "2m05s"), (3725, "1h02m")])
def test_durations(seconds: float | None, text: str) -> None:
    assert _duration(seconds) == text
