"""The display of a running study: a live table on a terminal, one plain line per event everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.run.layout import TrialRecord
from studies.claims.falsifiers import Verdict
from studies.claims.symptoms import Health
from studies.execution.status import Status

PLAIN_SECONDS = 10.0
"""Seconds between two progress lines of a trial when the output is no terminal."""
SILENT_SECONDS = 60.0
"""Age in seconds from which the age of a status is shown: its process may be gone."""
SHOWN_ENDED = 8
"""Ended trials in the live table; earlier ones are only counted."""
COLUMNS = {"KL/token": "objective/kl_exact_per_token", "entropy": "policy/entropy", "reward": "objective/scores"}
WORDS = ("arm", "status", "unhealthy", "falsified at step")
"""Columns of the live table that are no numbers."""
STYLES = {"complete": "green", "budget": "yellow", "pruned": "yellow", "diverged": "magenta", "failed": "red"}


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
    printed: set[str] = field(default_factory=set)
    """Lines that have been printed of it."""
    fallen: list[str] = field(default_factory=list)
    """Claims that this trial has refuted, with the step."""
    unhealthy: str = ""
    """Series that have left their band, by the last part of their name."""

    def look(self, status: Status, now: float) -> None:
        """Take in a new status."""
        if status.began != self.status.began:  # another process
            self.printed, self.stage_began = set(), ("", 0.0, 0)
        if status.stage != self.stage_began[0] and status.total:
            self.stage_began = status.stage, now, status.done
        if status.stage == "train":
            self.planned = status.total
        self.status = status

    def left(self, now: float) -> str:
        """Time left of the stage, at the speed seen so far."""
        _, began, done = self.stage_began
        gone = self.status.done - done
        return _duration((now - began) / gone * (self.status.total - self.status.done)) if gone > 0 else "-"


class Display:
    """A display of trials' progress, by label. All text is shown as it is: names and messages are never markup."""

    def __init__(self, console: Console, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self.total = total
        """Trials in all; the trials that a search will confirm are only known when it ends."""
        self._rows: dict[str, Row] = {}
        self._ended = self._ended_here = 0
        self._first: float | None = None
        """Time when the first trial of this call was seen; shared stages come before."""
        live = Live(console=console, refresh_per_second=4, get_renderable=self.table)
        self.live: AbstractContextManager[object] = live if console.is_terminal else nullcontext()
        """Within it the table is shown."""

    def line(self, text: str, style: str = "") -> None:
        """Print one line above the table."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def recorded(self, n: int, of: int, what: str) -> None:
        """Count trials that need not run."""
        self._ended += n
        if n:
            self.line(f"already recorded: {n} of {of} {what}", "dim")

    def shown(self, status: Status) -> None:
        """Take in the status of a running trial, and print its news."""
        now, row = self._clock(), self._row(status.label, status)
        row.look(status, now)
        if self._first is None and not status.shared:
            self._first = now
        self.notes(status)
        if not self._console.is_terminal and status.total and now - row.spoken >= PLAIN_SECONDS:
            row.spoken = now
            shown = [f"{title} {status.values[key]:.4g}" for title, key in COLUMNS.items() if key in status.values]
            ill = f"  unhealthy: {row.unhealthy}" if row.unhealthy else ""
            head = f"{status.label}: {status.stage} {status.done}/{status.total}"
            self.line(f"{head}  {'  '.join(shown)}  left {row.left(now)}{ill}")

    def notes(self, status: Status) -> None:
        """Print the notes of a status beside its progress, each line once."""
        row = self._row(status.label, status)
        for stage, (state, detail, seconds) in status.stages.items():
            if state == "damaged" or (status.shared and state in ("built", "cached")):
                took = f" in {seconds:.1f} s" if state == "built" else ""
                named = f" ({detail})" if detail else ""
                of = status.label.removeprefix("shared stages of ")
                self._once(row, f"{stage:<9} {state}{took}{named} of {of}", "dim" if state == "cached" else "")
        if status.resumed:
            self._once(row, f"{status.label}: continues from step {status.resumed:,}", "dim")
        for warning in status.warnings:
            self._once(row, f"{status.label}: {warning}", "yellow")

    def forget(self, label: str) -> None:
        """Shared stages have ended, or their process has."""
        self._rows.pop(label, None)

    def ended(self, record: TrialRecord, seconds: float | None) -> None:
        """Show that a trial has ended, `seconds` after its last process began."""
        label = f"{record.arm} seed {record.seed}"
        row = self._row(label)
        row.ended, row.status.done = record.status, record.steps
        row.status.total = row.planned or record.steps
        self._ended += 1
        self._ended_here += 1
        if not self._console.is_terminal:
            reason = f": {record.reason}" if record.reason else ""
            took = f" in {seconds:.1f} s" if seconds is not None else ""
            self.line(f"{label}: {record.status}{reason}{took}  ({self._summary()})")

    def fallen(self, verdict: Verdict) -> None:
        """Show a claim that a trial has just refuted."""
        label = f"{verdict.arm} seed {verdict.seed}"
        if row := self._rows.get(label):  # a trial that ended before this call has none
            row.fallen.append(verdict.name if verdict.step is None else f"{verdict.name} {verdict.step}")
        self.line(f"{label}: claim {verdict.name} FALSIFIED, {verdict.reason}", "red")

    def health(self, label: str, health: Health) -> None:
        """Series of a trial that are outside their band now: words in its row, and one line for each when it leaves."""
        row = self._row(label)
        row.unhealthy = ", ".join(one.key.rpartition("/")[2] for one in health.symptoms)
        for one in health.symptoms:
            if one.key not in row.printed:
                row.printed.add(one.key)
                self.line(f"{label}: {one.sentence}", "yellow")

    def table(self) -> RenderableType:
        """Build the live display."""
        rows = list(self._rows.values())
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("arm", "seed", "status", "step", *COLUMNS, "left", *WORDS[2:]):
            table.add_column(title, justify="left" if title in WORDS else "right", no_wrap=True)
        for row in [*[row for row in rows if row.ended][-SHOWN_ENDED:], *(row for row in rows if not row.ended)]:
            table.add_row(*self._cells(row))
        return Group(table, Text(f"ended: {self._summary()}", style="dim"))

    def _row(self, label: str, status: Status | None = None) -> Row:
        return self._rows.setdefault(label, Row(status or Status(label, "", 0, 0.0)))

    def _once(self, row: Row, text: str, style: str) -> None:
        if text not in row.printed:
            row.printed.add(text)
            self.line(text, style)

    def _summary(self) -> str:
        """Return how many trials have ended, and when the rest will have at the rate of this call."""
        text = f"{self._ended} of {self.total} trials"
        if self._first is None or not self._ended_here or self._ended >= self.total:
            return text
        left = (self._clock() - self._first) / self._ended_here * (self.total - self._ended)
        return f"{text}, about {_duration(left)} left"

    def _cells(self, row: Row) -> list[Text]:
        status = row.status
        arm, _, seed = status.label.rpartition(" seed ") if not status.shared else ("shared stages", "", "")
        age = time.time() - status.began - status.seconds
        state = row.ended or (status.stage if status.stage != "train" else "running") or "starting"
        if not row.ended and age > SILENT_SECONDS:
            state = f"{state}, silent for {_duration(age)}"
        values = [f"{status.values[key]:.4f}" if key in status.values else "-" for key in COLUMNS.values()]
        steps = f"{status.done}/{status.total}" if status.total else "-"
        left = "" if row.ended else row.left(self._clock())
        return [
            *(Text(one) for one in (arm, seed)),
            Text(state, style=STYLES.get(state, "cyan")),
            *(Text(one) for one in (steps, *values, left)),
            Text(row.unhealthy, style="yellow"),
            Text(", ".join(row.fallen), style="red"),
        ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
