from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import binomtest

from pipeline.config.loading import load_config
from pipeline.intervals import wilson
from pipeline.run.layout import Layout
from pipeline.run.symptoms import Health, Symptom
from studies.claims.falsifiers import Verdict
from studies.execution.display import Display, _duration
from studies.execution.jobs import Crashed, Finished, Job, Message


def job(layout: Layout, number: int = 0, label: str = "weak seed 0", until: str | None = None) -> Job:
    log, folder = layout.root / "log.txt", layout.root / "job"
    return Job(number, label, load_config("tiny"), layout, "fake_trial:run_trial", log, folder, until)


def done(status: str = "complete", reason: str | None = None) -> Any:
    return SimpleNamespace(status=status, reason=reason, steps=64)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_progress_is_rare_and_ends_are_told(layout: Layout) -> None:
    text, clock = io.StringIO(), Clock()
    with Display(Console(file=text, width=200), 4, clock) as display:
        display.recorded(1, 4, "trials")
        one = job(layout)
        display.handle(Message(one, "metrics", (16, {"objective/kl_exact_per_token": 0.0123})))
        for step in range(0, 64, 2):
            clock.now += 1
            display.handle(Message(one, "progress", ("train", step, 64, "")))
        display.handle(Finished(one, done("diverged", "entropy 0")))
    lines = text.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "already recorded: 1 of 4 trials"
    assert lines[1].startswith("weak seed 0: train 0/64  KL/token 0.0123")
    assert lines[-1].startswith("weak seed 0: diverged: entropy 0 in ")
    assert lines[-1].endswith("(2 of 4 trials, about 1m04s left)")  # one took 32 s of the clock, two are left


def test_a_resumed_trial_says_from_where_it_continues(layout: Layout) -> None:
    text, clock = io.StringIO(), Clock()
    display = Display(Console(file=text, width=200), 1, clock)
    display.handle(Message(job(layout), "progress", ("train", 432, 2048, "resumed")))
    display.handle(Message(job(layout, 1), "progress", ("train", 0, 2048, "resumed")))
    lines = text.getvalue().splitlines()
    assert lines[0] == "weak seed 0: continues from step 432"
    assert sum("continues" in line for line in lines) == 1


def test_what_users_name_is_never_markup(layout: Layout) -> None:
    text = io.StringIO()
    display = Display(Console(file=text, width=200), 1)
    display.handle(Message(job(layout, label="[red]x[/red] seed 0"), "warn", ("[/nonsense] happened",)))
    display.handle(Crashed(job(layout, label="[red]x[/red] seed 0"), "[bold]boom"))
    assert text.getvalue().splitlines() == [
        "[red]x[/red] seed 0: [/nonsense] happened",
        "[red]x[/red] seed 0: [bold]boom",
    ]


def test_shared_stages_are_lines_with_their_time(layout: Layout) -> None:
    text, clock = io.StringIO(), Clock()
    display = Display(Console(file=text, width=200), 1, clock)
    shared = job(layout, -1, "shared stages", until="reward")
    display.handle(Message(shared, "stage", ("prompts", "cached", "k1")))
    display.handle(Message(shared, "stage", ("sft", "building", "k2")))
    clock.now += 2.5
    display.handle(Message(shared, "stage", ("sft", "built", "k2")))
    display.handle(Finished(shared, done("incomplete")))
    assert text.getvalue().splitlines() == ["prompts   cached (k1)", "sft       built in 2.5 s (k2)"]


def test_the_live_table_shows_running_and_ended_trials(layout: Layout) -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True)
    display = Display(console, 20)
    for number in range(12):
        display.handle(Finished(job(layout, number, f"weak seed {number}"), done()))
    display.handle(Message(job(layout, 99, "strong seed 7"), "progress", ("train", 32, 64, "")))
    display.handle(Message(job(layout, 99, "strong seed 7"), "metrics", (32, {"policy/entropy": 1.25})))
    console.print(display._render())
    shown = text.getvalue()
    assert "ended: 12 of 20 trials" in shown
    assert "32/64" in shown
    assert "64/64" in shown  # an ended trial shows the gradient steps that it took
    assert "1.2500" in shown
    assert shown.count("complete") == 8


def test_a_claim_that_falls_is_a_line_and_a_column(layout: Layout) -> None:
    text = io.StringIO()
    console = Console(file=text, width=160, force_terminal=True)
    display = Display(console, 2)
    verdict = Verdict("drift", "weak", 0, "FALSIFIED", 48, 0.5, 3, "0.5 at step 48")
    display.fallen(job(layout), [verdict])
    display.handle(Message(job(layout), "progress", ("train", 64, 128, "")))
    console.print(display._render())
    assert "weak seed 0: claim drift FALSIFIED, 0.5 at step 48" in text.getvalue()
    assert "drift 48" in text.getvalue().splitlines()[-2]


APPROXKL = Symptom("policy/approxkl", "above", 0.02, 30, 60, 7, "too far", "lower optimiser.lr")
ENTROPY = Symptom("policy/entropy", "below", 0.1, 30, 60, 9, "it hardly chooses", "raise kl.beta")


def test_a_series_that_leaves_its_band_is_one_line_and_a_word(layout: Layout) -> None:
    text, clock = io.StringIO(), Clock()
    display, one = Display(Console(file=text, width=200), 1, clock), job(layout)
    for symptoms in ((APPROXKL,), (APPROXKL, ENTROPY), ()):
        display.health(one, Health(symptoms, ("policy/approxkl", "policy/entropy")))
        clock.now += 20
        display.handle(Message(one, "progress", ("train", 32, 64, "")))
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


def test_the_live_table_has_a_column_of_unhealthy_series(layout: Layout) -> None:
    text = io.StringIO()
    console = Console(file=text, width=160, force_terminal=True)
    display = Display(console, 1)
    display.health(job(layout), Health((APPROXKL,), ()))
    display.handle(Message(job(layout), "progress", ("train", 64, 128, "")))
    console.print(display._render())
    assert "unhealthy" in text.getvalue().splitlines()[1]
    assert "approxkl" in text.getvalue().splitlines()[-2]


def test_a_claim_that_another_trials_end_decides_stands_in_its_own_row(layout: Layout) -> None:
    display = Display(Console(file=io.StringIO(), width=160), 2)
    display.handle(Message(job(layout), "progress", ("train", 64, 128, "")))
    display.handle(Message(job(layout, 1, "base seed 0"), "progress", ("train", 64, 128, "")))
    display.fallen(job(layout, 1, "base seed 0"), [Verdict("further", "weak", 0, "FALSIFIED", 48, 0.5, 3, "more")])
    fallen = {row.job.label: row.fallen for row in display._rows.values()}
    assert fallen == {"weak seed 0": ["further 48"], "base seed 0": []}


@pytest.mark.parametrize(("seconds", "shown"), [(None, "-"), (5.9, "5s"), (125, "2m05s"), (3725, "1h02m")])
def test_durations(seconds: float | None, shown: str) -> None:
    assert _duration(seconds) == shown


@pytest.mark.parametrize(("wins", "n"), [(0, 10), (5, 10), (10, 10), (333, 512)])
def test_wilson_agrees_with_scipy(wins: int, n: int) -> None:
    expected = binomtest(wins, n).proportion_ci(method="wilson")
    assert wilson(wins / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
