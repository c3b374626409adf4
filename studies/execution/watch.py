"""Watches a study: shows how its trials come along, from their status files and records, whoever runs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.config.trial import flatten
from pipeline.errors import Damaged
from pipeline.run.layout import TrialRecord
from pipeline.run.locks import is_held
from studies.claims.falsifiers import Verdict
from studies.claims.live import LiveVerdicts
from studies.claims.symptoms import health_of
from studies.claims.verdicts import claims_on, of_record, partner, read_series
from studies.definition.design import Cell
from studies.execution.agenda import Agenda
from studies.execution.display import Display
from studies.execution.interim import Interim
from studies.execution.live_health import LiveHealth
from studies.execution.records import current_records, sound_record
from studies.execution.started import Started
from studies.execution.status import Status, read_status
from studies.tracking.sync import Running

LOOK_SECONDS = 0.5
"""Between two looks at the status files, where reading them takes less than `LOOK_SHARE` of that."""
LOOK_SHARE = 0.04
LEFT = ("elsewhere", "interrupted")
"""Outcomes of a process that ended before its task did."""


class Watch:
    """What has been seen of a study so far."""

    def __init__(self, run: Started, agenda: Agenda, display: Display, interim: Interim) -> None:
        self._run, self._agenda, self._display, self._interim = run, agenda, display, interim
        self._live, self._health = LiveVerdicts(run.study.baseline), LiveHealth()
        self._cells: dict[str, Cell] = {}
        self._written: dict[str, int] = {}
        """Time of each status file when it was last read."""
        self._older: dict[str, int] = {}
        """Time of each status file that was there before."""
        self._running: dict[str, Status] = {}
        self._followed: dict[str, str] = {}
        self._ended: set[str] = set()
        self._next, self._pause = 0.0, LOOK_SECONDS

    def begin(self) -> None:
        """Take note of the trials that have ended before."""
        open_cells = {self._name(cell) for cell in self._agenda.open()}
        search, compared = self._agenda.search, self._agenda.plan
        if search is not None:
            total = self._run.study.search.trials if self._run.study.search else 0
            self._display.recorded(len(search.ended), total, "trials of the search")
            self._ended |= {self._name_of(record) for record in search.ended.values()}
        done = [self._name(cell) for cell in compared if self._name(cell) not in open_cells]
        self._ended |= set(done)
        what = "trials of the confirmation" if search is not None else "trials"
        self._display.recorded(len(done), len(compared), what)
        for path in (self._run.folder.path / "status").glob("*.json"):
            with suppress(FileNotFoundError):
                self._older[path.stem] = self._written[path.stem] = path.stat().st_mtime_ns

    def poll(self) -> None:
        """Look at what has changed, unless the last look was just now."""
        if time.monotonic() < self._next:
            return
        began = time.monotonic()
        for cell in self._agenda.known():  # also one that began and ended since the last look
            self._cells.setdefault(self._name(cell), cell)
        self._read_statuses()
        for name, cell in list(self._cells.items()):
            if name not in self._ended and (record := sound_record(self._run.folder, cell)) is not None:
                self._on_end(name, cell, record)
        self._interim.poll()
        self._pause = max(LOOK_SECONDS, (time.monotonic() - began) / LOOK_SHARE)
        self._next = time.monotonic() + self._pause

    def running(self) -> list[Running]:
        """The trials that run now and have begun to record."""
        return [
            Running(cell.arm, cell.seed, cell.config, Path(status.metrics))
            for name, status in list(self._running.items())
            if status.metrics and is_held(self._run.folder.lock_file(status.lock)) and (cell := self._cells[name])
        ]

    def look(self) -> None:
        """Look now."""
        self._next = 0.0
        self.poll()

    def _read_statuses(self) -> None:
        with suppress(FileNotFoundError):
            for path in sorted((self._run.folder.path / "status").glob("*.json")):
                with suppress(FileNotFoundError):
                    self._read(path)

    def _read(self, path: Path) -> None:
        name, written = path.stem, path.stat().st_mtime_ns
        if name in self._ended or self._written.get(name) == written:
            return
        self._written[name] = written
        status = read_status(path)
        if status is None:
            return
        works = not status.outcome and is_held(self._run.folder.lock_file(status.lock))
        if works and name in self._cells:
            self._follow(name, self._cells[name], status)
        if works or (status.shared and status.outcome not in LEFT):
            self._display.shown(name, status)
        if status.shared and status.outcome:
            self._display.forget(name)

    def _follow(self, name: str, cell: Cell, status: Status) -> None:
        """Judge the claims on a running trial, and its health, by what it has recorded."""
        self._running[name] = status
        arm, seed = cell.arm, cell.seed
        if status.metrics and self._followed.get(name) != status.metrics:
            self._followed[name], path = status.metrics, Path(status.metrics)
            compared = _compared_metrics(self._run) if arm == self._run.study.baseline else ()
            self._health.follow(arm, seed, path, dict(flatten(cell.config.model_dump(mode="json"))))
            self._live.follow(arm, seed, path, claims_on(self._run.study, arm), compared)
            if arm != self._run.study.baseline:
                self._take_in_baseline(seed)
        self._tell_fallen(name, self._live.poll(arm, seed))
        if (health := self._health.poll(arm, seed)) is not None:
            self._display.health(name, cell.label, health)

    def _on_end(self, name: str, cell: Cell, record: TrialRecord) -> None:
        if record.status != "failed" and not self._is_settled(cell):
            return
        self._ended.add(name)
        self._running.pop(name, None)
        status = self._last_status(name)
        self._display.ended(name, record, status.seconds if status is not None else None)
        self._tell_fallen(name, self._live.news(self._fallen_by(record)))
        self._health.leave(cell.arm, cell.seed)
        with suppress(Damaged):  # its trial runs again at the next start
            self._display.health(name, cell.label, health_of(self._run.folder, record))
        numbers = {one.arm: number for number, one in self._agenda.search.ended.items()} if self._agenda.search else {}
        if self._agenda.search is not None and record.arm in numbers:
            self._display.line(self._agenda.search.describe(numbers[record.arm]))
        self._look_at_seed(cell)

    def _last_status(self, name: str) -> Status | None:
        """The last status of a trial; what it tells is printed, also where the process ended between two looks."""
        path = self._run.folder.status_file(name)
        status = read_status(path)
        if status is not None and path.stat().st_mtime_ns != self._older.get(name):
            self._display.notes(name, status)
        return status

    def _is_settled(self, cell: Cell) -> bool:
        """Whether the agenda counts the record of a trial: one of older code or settings is being replaced."""
        return all((other.arm, other.seed) != (cell.arm, cell.seed) for other in self._agenda.open())

    def _fallen_by(self, record: TrialRecord) -> list[Verdict]:
        """Claims that a trial has refuted by its end. The end of the baseline's trial also decides claims that are
        relative to it, on trials that ended before."""
        study, folder, plan = self._run.study, self._run.folder, self._agenda.plan
        fallen = of_record(study, folder, record, plan)
        relative = {one.name for one in study.falsifiers if one.relative_to}
        if record.arm == study.baseline and relative:
            self._take_in_baseline(record.seed)
            others = [cell for cell in plan if cell.seed == record.seed and cell.arm != record.arm]
            for other in current_records(folder, others):
                fallen += [one for one in of_record(study, folder, other, plan) if one.name in relative]
        return fallen

    def _take_in_baseline(self, seed: int) -> None:
        """Let running trials be compared with the baseline's series of a seed, once its trial has ended."""
        study, folder, metrics = self._run.study, self._run.folder, _compared_metrics(self._run)
        record = partner(study, folder, self._agenda.plan, seed) if metrics else ""
        if not isinstance(record, str):
            with suppress(Damaged):
                series = {metric: read_series(folder, record, metric).records for metric in metrics}
                self._live.baseline_ended(seed, series)

    def _tell_fallen(self, name: str, fallen: Sequence[Verdict]) -> None:
        self._display.fallen(name, fallen, lambda one: self._run.folder.cell_name(one.arm, one.seed))

    def _look_at_seed(self, cell: Cell) -> None:
        """Look at the study when a trial was the last of its chain, unless it was the last of all."""
        chains = {row.number: row.chain for row in self._run.study.replicates}
        plan = self._agenda.plan
        left = {chains.get(other.seed, other.seed) for other in plan if self._name(other) not in self._ended}
        seeds = {chains.get(other.seed, other.seed) for other in plan}
        complete = len(seeds - left)
        if left and cell in plan and chains.get(cell.seed, cell.seed) not in left and complete > 1:
            self._interim.look(f"After {complete} of {len(seeds)} seeds (interim, not final)")

    def _name(self, cell: Cell) -> str:
        return self._run.folder.cell_name(cell.arm, cell.seed)

    def _name_of(self, record: TrialRecord) -> str:
        return self._run.folder.cell_name(record.arm, record.seed)


def _compared_metrics(run: Started) -> list[str]:
    """Series in which other arms are compared with the baseline."""
    return [one.metric for one in run.study.falsifiers if one.relative_to and not one.evaluated]
