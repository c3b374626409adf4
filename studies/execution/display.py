"""What a running study shows: a live table on a terminal, one plain line per event everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.run.layout import TrialRecord
from pipeline.run.symptoms import Health
from studies.claims.falsifiers import Verdict
from studies.execution.status import Status

PLAIN_SECONDS = 10.0
"""Between two progress lines of a trial when the output is no terminal."""
SILENT_SECONDS = 60.0
"""From this age on the age of a status is shown: its process may be gone."""
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
class Row:
    """One trial, or the stages that trials share."""

    status: Status
    ended: str = ""
    planned: int = 0
    """Gradient steps of the whole trial."""
    stage_began: tuple[str, float, int] = ("", 0.0, 0)
    """The stage, when its first progress was seen, and how far it was: a resumed trial starts in the middle."""
    spoken: float = 0.0
    told: set[str] = field(default_factory=set)
    """Lines that have been printed of it."""
    fallen: list[str] = field(default_factory=list)
    """Claims that this trial has refuted, with the step."""
    unhealthy: tuple[str, ...] = ()
    """Series that have left their band, by the last part of their name."""

    def look(self, status: Status, now: float) -> None:
        """Take in a new status."""
        if status.owner != self.status.owner:
            self.told, self.stage_began = set(), ("", 0.0, 0)
        if status.stage != self.stage_began[0] and status.total:
            self.stage_began = status.stage, now, status.done
        if status.stage == "train":
            self.planned = status.total
        self.status = status

    def seconds_left(self, now: float) -> float | None:
        """Of the stage, at the speed seen so far."""
        _, began, done = self.stage_began
        gone = self.status.done - done
        return (now - began) / gone * (self.status.total - self.status.done) if gone > 0 else None


class Display:
    """Shows how trials come along. All text is shown as it is: names and messages are never markup."""

    def __init__(self, console: Console, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self.total = total
        """Trials in all; what a search will confirm is only known when it ends."""
        self._rows: dict[str, Row] = {}
        self._ended = self._ended_here = 0
        self._first: float | None = None
        """When the first trial of this call was seen; shared stages come before."""
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

    def shown(self, name: str, status: Status) -> None:
        """Take in the status of a running trial, and print what is new in it."""
        now = self._clock()
        row = self._rows.setdefault(name, Row(status))
        row.look(status, now)
        if self._first is None and not status.shared:
            self._first = now
        self.notes(name, status)
        if self._live is None and status.total and now - row.spoken >= PLAIN_SECONDS:
            row.spoken = now
            self._speak(row, now)

    def notes(self, name: str, status: Status) -> None:
        """Print what a status has to tell beside its progress, each line once."""
        row = self._rows.setdefault(name, Row(status))
        for stage, (state, detail, seconds) in status.stages.items():
            if state == "damaged" or (status.shared and state in ("built", "cached")):
                took = f" in {seconds:.1f} s" if state == "built" else ""
                text = f"{stage:<9} {state}{took}{f' ({detail})' if detail else ''}"
                self._once(row, text, "dim" if state == "cached" else "", of=status.label)
        if status.resumed:
            self._once(row, f"{status.label}: continues from step {status.resumed:,}", "dim")
        for warning in status.warnings:
            self._once(row, f"{status.label}: {warning}", "yellow")

    def forget(self, name: str) -> None:
        """Shared stages have ended, or their process has."""
        self._rows.pop(name, None)

    def ended(self, name: str, record: TrialRecord, seconds: float | None) -> None:
        """Show that a trial has ended, `seconds` after its last process began."""
        label = f"{record.arm} seed {record.seed}"
        row = self._rows.setdefault(name, Row(Status(label, "", 0, "", 0.0)))
        row.ended, row.status.done = record.status, record.steps
        row.status.total = row.planned or record.steps
        self._ended += 1
        self._ended_here += 1
        if self._live is None:
            reason = f": {record.reason}" if record.reason else ""
            took = f" in {seconds:.1f} s" if seconds is not None else ""
            self.line(f"{label}: {record.status}{reason}{took}  ({self._summary()})")

    def fallen(self, name: str, verdicts: Sequence[Verdict], names: Callable[[Verdict], str]) -> None:
        """Claims that a trial has just refuted; those of other trials go to the rows of these."""
        for one in verdicts:
            row = self._rows.get(names(one)) or self._rows.get(name)
            if row is not None:
                row.fallen.append(one.name if one.step is None else f"{one.name} {one.step}")
            self.line(f"{one.arm} seed {one.seed}: claim {one.name} FALSIFIED, {one.reason}", "red")

    def health(self, name: str, label: str, health: Health) -> None:
        """Series of a trial that are outside their band now: words in its row, and one line for each when it leaves."""
        row = self._rows.setdefault(name, Row(Status(label, "", 0, "", 0.0)))
        row.unhealthy = tuple(one.key.rpartition("/")[2] for one in health.symptoms)
        for one in health.symptoms:
            if one.key not in row.told:
                row.told.add(one.key)
                self.line(f"{label}: {one.sentence}", "yellow")

    def cached(self, stage: str, key: str) -> None:
        """A stage before the training that is there already."""
        self.line(f"{stage:<9} cached ({key})", "dim")

    def _once(self, row: Row, text: str, style: str, of: str = "") -> None:
        if text not in row.told:
            row.told.add(text)
            self.line(f"{text} of {of.removeprefix('shared stages of ')}" if of else text, style)

    def _speak(self, row: Row, now: float) -> None:
        status = row.status
        values = "  ".join(
            f"{title} {status.values[key]:.4g}" for title, key in COLUMNS.items() if key in status.values
        )
        ill = f"  {UNHEALTHY}: {', '.join(row.unhealthy)}" if row.unhealthy else ""
        left = _duration(row.seconds_left(now))
        self.line(f"{status.label}: {status.stage} {status.done}/{status.total}  {values}  left {left}{ill}")

    def _summary(self) -> str:
        """How many trials have ended, and when the rest will have at the rate of this call."""
        text = f"{self._ended} of {self.total} trials"
        if self._first is None or not self._ended_here or self._ended >= self.total:
            return text
        left = (self._clock() - self._first) / self._ended_here * (self.total - self._ended)
        return f"{text}, about {_duration(left)} left"

    def _render(self) -> RenderableType:
        rows = list(self._rows.values())
        ended = [row for row in rows if row.ended][-SHOWN_ENDED:]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("arm", "seed", "status", "step", *COLUMNS, "left", UNHEALTHY, FALLEN):
            words = title in ("arm", "status", UNHEALTHY, FALLEN)
            table.add_column(title, justify="left" if words else "right", no_wrap=True)
        for row in [*ended, *(row for row in rows if not row.ended)]:
            table.add_row(*self._cells(row))
        return Group(table, Text(f"ended: {self._summary()}", style="dim"))

    def _cells(self, row: Row) -> list[Text]:
        status = row.status
        arm, _, seed = status.label.rpartition(" seed ") if not status.shared else ("shared stages", "", "")
        age = time.time() - status.began - status.seconds
        state = row.ended or (status.stage if status.stage != "train" else "running") or "starting"
        if not row.ended and age > SILENT_SECONDS:
            state = f"{state}, silent for {_duration(age)}"
        values = [f"{status.values[key]:.4f}" if key in status.values else "-" for key in COLUMNS.values()]
        steps = f"{status.done}/{status.total}" if status.total else "-"
        left = "" if row.ended else _duration(row.seconds_left(self._clock()))
        return [
            *(Text(one) for one in (arm, seed)),
            Text(state, style=STYLES.get(state, "cyan")),
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
