"""What a running study shows: a live table on a terminal, one plain line per event everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.run.progress import RESUMED
from pipeline.run.symptoms import Health
from studies.claims.falsifiers import Verdict
from studies.execution.jobs import Crashed, Event, Finished, Interrupted, Job, Message

PLAIN_SECONDS = 10.0
"""Between two progress lines of a trial when the output is no terminal."""
SHOWN_ENDED = 8
"""Ended trials in the live table; earlier ones are only counted."""
COLUMNS = {"KL/token": "objective/kl_exact_per_token", "entropy": "policy/entropy", "reward": "objective/scores"}
FALLEN = "falsified at step"
UNHEALTHY = "unhealthy"
STYLES = {
    "complete": "green",
    "budget": "yellow",
    "pruned": "yellow",
    "diverged": "magenta",
    "failed": "red",
    "interrupted": "yellow",
}


@dataclass
class JobRow:
    """What is known of one job."""

    job: Job
    status: str = "starting"
    stage: str = ""
    done: int = 0
    total: int = 0
    planned: int = 0
    """Gradient steps of the whole trial."""
    values: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    began_at: tuple[float, int] | None = None
    """When this process saw the first progress of the stage, and how far it was: a resumed trial starts in the
    middle."""
    spoken: float = 0.0
    fallen: list[str] = field(default_factory=list)
    """Claims that this trial has refuted, with the step."""
    unhealthy: tuple[str, ...] = ()
    """Series that have left their band, by the last part of their name."""
    warned: set[str] = field(default_factory=set)
    """Series of which a line has told that."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Take note of how far a stage has come."""
        if stage != self.stage or self.began_at is None:
            self.stage, self.began_at = stage, (time.monotonic(), done)
        self.status, self.done, self.total = "running", done, total
        if stage == "train":
            self.planned = total

    @property
    def seconds_left(self) -> float | None:
        """Of the stage, at the speed seen so far."""
        if self.began_at is None or self.done <= self.began_at[1]:
            return None
        return (time.monotonic() - self.began_at[0]) / (self.done - self.began_at[1]) * (self.total - self.done)


class Display:
    """Shows the events of an executor. All text is shown as it is: names and messages are never markup."""

    def __init__(self, console: Console, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self.total = total
        """Trials in all; what a search will confirm is only known when it ends."""
        self._ended = 0
        self._rows: dict[tuple[int, str], JobRow] = {}
        self._stages: dict[tuple[int, str], float] = {}
        self._first: float | None = None
        """When the first trial of this call started; shared stages come before."""
        self._ended_here = 0
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self._render) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def line(self, text: str, style: str = "") -> None:
        """Print one line above the table."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def recorded(self, n: int, of: int, what: str) -> None:
        """Count trials that need not run."""
        self._ended += n
        if n:
            self.line(f"already recorded: {n} of {of} {what}", "dim")

    def handle(self, event: Event) -> None:
        """Show an event."""
        row = self._rows.setdefault((event.job.number, event.job.label), JobRow(event.job))
        if self._first is None and event.job.until is None:
            self._first = self._clock()
        if isinstance(event, Finished):
            self._finished(row, event)
        elif isinstance(event, Crashed):
            self._close(row, "failed")
            if not event.disk_full:  # which ends the whole study, with one line for all trials
                self.line(f"{row.job.label}: {event.reason}", "red")
        elif isinstance(event, Interrupted):
            self._close(row, "interrupted")
            self.line(f"{row.job.label}: interrupted: {event.reason}", "yellow")
        else:
            self._message(row, event)

    def fallen(self, job: Job, verdicts: Sequence[Verdict]) -> None:
        """Claims that a trial has just refuted; those of other trials go to the rows of these."""
        own = self._rows.setdefault((job.number, job.label), JobRow(job))
        for one in verdicts:
            of_trial = (row for row in self._rows.values() if row.job.label == f"{one.arm} seed {one.seed}")
            row = next(of_trial, own)
            row.fallen.append(one.name if one.step is None else f"{one.name} {one.step}")
            self.line(f"{one.arm} seed {one.seed}: claim {one.name} FALSIFIED, {one.reason}", "red")

    def health(self, job: Job, health: Health) -> None:
        """Series of a trial that are outside their band now: words in its row, and one line for each when it leaves."""
        row = self._rows.setdefault((job.number, job.label), JobRow(job))
        row.unhealthy = tuple(one.key.rpartition("/")[2] for one in health.symptoms)
        for one in health.symptoms:
            if one.key not in row.warned:
                row.warned.add(one.key)
                self.line(f"{job.label}: {one.sentence}", "yellow")

    def _message(self, row: JobRow, message: Message) -> None:
        args: tuple[Any, ...] = message.args
        if message.kind == "stage":
            self._stage(row, *args)
        elif message.kind == "progress":
            stage, done, total, note = args
            row.progress(stage, done, total)
            if note == RESUMED and done:
                self.line(f"{row.job.label}: continues from step {done:,}", "dim")
            self._speak(row)
        elif message.kind == "metrics":
            row.values.update(args[1])
        elif message.kind == "warn":
            self.line(f"{row.job.label}: {args[0]}", "yellow")

    def _stage(self, row: JobRow, name: str, state: str, detail: str) -> None:
        if state == "building":
            self._stages[row.job.number, name] = self._clock()
            row.stage, row.status, row.done, row.total, row.began_at = name, "running", 0, 0, None
            return
        if name in ("train", "evaluate") and state == "built" and row.job.until is None:
            return
        began = self._stages.pop((row.job.number, name), None)
        took = f" in {self._clock() - began:.1f} s" if began is not None else ""
        if row.job.until is not None or state == "damaged":
            _, of, seed = row.job.label.rpartition(" of seed ")
            said = f"{name:<9} {state}{took}{f' ({detail})' if detail else ''}{of}{seed if of else ''}"
            self.line(said, "dim" if state == "cached" else "")

    def _speak(self, row: JobRow) -> None:
        if self._live is None and self._clock() - row.spoken >= PLAIN_SECONDS:
            row.spoken = self._clock()
            values = "  ".join(f"{title} {row.values[key]:.4g}" for title, key in COLUMNS.items() if key in row.values)
            ill = f"  {UNHEALTHY}: {', '.join(row.unhealthy)}" if row.unhealthy else ""
            self.line(
                f"{row.job.label}: {row.stage} {row.done}/{row.total}  {values}  left {_duration(row.seconds_left)}"
                f"{ill}"
            )

    def _finished(self, row: JobRow, event: Finished) -> None:
        self._close(row, event.outcome.status)
        row.done, row.total = event.outcome.steps, row.planned or event.outcome.steps
        if row.job.until is None:
            self._ended += 1
            self._ended_here += 1
            if self._live is None:
                reason = f": {event.outcome.reason}" if event.outcome.reason else ""
                self.line(
                    f"{row.job.label}: {row.status}{reason} in {time.monotonic() - row.started:.1f} s "
                    f" ({self._summary()})"
                )

    def _summary(self) -> str:
        """How many trials have ended, and when the rest will have at the rate of this call."""
        text = f"{self._ended} of {self.total} trials"
        if self._first is None or not self._ended_here or self._ended >= self.total:
            return text
        left = (self._clock() - self._first) / self._ended_here * (self.total - self._ended)
        return f"{text}, about {_duration(left)} left"

    def shared(self, stage: str, key: str) -> None:
        """A stage before PPO that is there already."""
        self.line(f"{stage:<9} cached ({key})", "dim")

    def _close(self, row: JobRow, status: str) -> None:
        row.status = status
        if row.job.until is not None:
            del self._rows[row.job.number, row.job.label]

    def _render(self) -> RenderableType:
        rows = list(self._rows.values())
        ended = [row for row in rows if row.status in STYLES][-SHOWN_ENDED:]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("arm", "seed", "status", "step", *COLUMNS, "left", UNHEALTHY, FALLEN):
            words = title in ("arm", "status", UNHEALTHY, FALLEN)
            table.add_column(title, justify="left" if words else "right", no_wrap=True)
        for row in [*ended, *(row for row in rows if row.status not in STYLES)]:
            table.add_row(*self._cells(row))
        return Group(table, Text(f"ended: {self._summary()}", style="dim"))

    def _cells(self, row: JobRow) -> list[Text]:
        arm, _, seed = row.job.label.rpartition(" seed ") if row.job.until is None else ("shared stages", "", "")
        steps = f"{row.done}/{row.total}" if row.total else "-"
        status = row.status if row.status != "running" or row.stage == "train" else row.stage
        values = [f"{row.values[key]:.4f}" if key in row.values else "-" for key in COLUMNS.values()]
        left = "" if row.status in STYLES else _duration(row.seconds_left)
        return [Text(one) for one in (arm or row.job.label, seed if arm else "")] + [
            Text(status, style=STYLES.get(row.status, "cyan")),
            *(Text(one) for one in (steps, *values, left)),
            Text(", ".join(row.unhealthy), style="yellow"),
            Text(", ".join(row.fallen), style="red"),
        ]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
