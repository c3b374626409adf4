"""Watches a study: shows how its trials come along, from their status files and records, whoever runs them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from pipeline.config.trial import flatten
from pipeline.errors import Damaged
from pipeline.run.bands import BANDS
from pipeline.run.layout import TrialRecord
from pipeline.run.locks import is_held
from pipeline.run.symptoms import examine
from pipeline.run.tail import Tail
from studies.claims.falsifiers import Verdict
from studies.claims.live import LiveVerdicts
from studies.claims.symptoms import health_of
from studies.claims.verdicts import claims_on, of_record, partner, read_series
from studies.definition.design import Cell
from studies.execution.agenda import Agenda
from studies.execution.display import Display
from studies.execution.interim import Interim
from studies.execution.records import current_records, sound_record
from studies.execution.started import Started
from studies.execution.status import Status, read_status
from studies.tracking.sync import Running

LOOK_SECONDS = 0.5
"""Between two looks at the status files, where reading them takes less than `LOOK_SHARE` of that."""
LOOK_SHARE = 0.04
HEALTH_SECONDS = 5.0
"""Between two judgements of a running trial's health, which take time in proportion to its records."""
LEFT = ("elsewhere", "interrupted")
"""Outcomes of a process that ended before its task did."""


class Watch:
    """What has been seen of a study so far. Tasks go by the name under which their files stand."""

    def __init__(self, run: Started, agenda: Agenda, display: Display, interim: Interim) -> None:
        self._run, self._agenda, self._display, self._interim = run, agenda, display, interim
        self._claims = LiveVerdicts(run.study.baseline)
        relative = [one for one in run.study.falsifiers if one.relative_to]
        self._relative = {one.name for one in relative}
        """Claims in which other arms are compared with the baseline."""
        self._compared = {one.metric for one in relative if not one.evaluated}
        """The series in which they are."""
        self._cells: dict[str, Cell] = {}
        self._written: dict[str, tuple[int, int]] = {}
        """Time and inode of each status file when it was last read; a clock's tick can hold two writings."""
        self._running: dict[str, Status] = {}
        self._tails: dict[str, Tail] = {}
        """Of running trials, the series that show their health."""
        self._judged: dict[str, float] = {}
        """When a running trial's health was last judged."""
        self._ended: set[str] = set()
        self._next = 0.0

    def begin(self) -> None:
        """Take note of the trials that have ended before."""
        still_open = {self._name(cell) for cell in self._agenda.open()}
        search, what = self._agenda.search, "trials"
        if search is not None and self._run.study.search is not None:
            what = "trials of the confirmation"
            self._display.recorded(len(search.ended), self._run.study.search.trials, "trials of the search")
            self._ended |= {self._run.folder.cell_name(one.arm, one.seed) for one in search.ended.values()}
        done = {self._name(cell) for cell in self._agenda.plan} - still_open
        self._ended |= done
        self._display.recorded(len(done), len(self._agenda.plan), what)
        for path in self._status_files():
            self._written[path.stem] = _mark(path)

    def poll(self) -> None:
        """Look at what has changed, unless the last look was just now."""
        began = time.monotonic()
        if began < self._next:
            return
        for cell in self._agenda.known():  # also one that began and ended since the last look
            self._cells.setdefault(self._name(cell), cell)
        for path in self._status_files():
            with suppress(FileNotFoundError):
                self._read(path)
        for name, cell in list(self._cells.items()):
            if name not in self._ended and (record := sound_record(self._run.folder, cell)) is not None:
                self._on_end(name, cell, record)
        self._interim.poll()
        now = time.monotonic()
        self._next = now + max(LOOK_SECONDS, (now - began) / LOOK_SHARE)

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

    def _status_files(self) -> list[Path]:
        return sorted((self._run.folder.path / "status").glob("*.json"))

    def _read(self, path: Path) -> None:
        name, written = path.stem, _mark(path)
        if name in self._ended or self._written.get(name) == written or (status := read_status(path)) is None:
            return
        self._written[name] = written
        works = not status.outcome and is_held(self._run.folder.lock_file(status.lock))
        if works and name in self._cells:
            self._follow(name, self._cells[name], status)
        if works or (status.shared and status.outcome not in LEFT):
            self._display.shown(status)
        if status.shared and status.outcome:
            self._display.forget(status.label)

    def _follow(self, name: str, cell: Cell, status: Status) -> None:
        """Judge the claims on a running trial, and its health, by what it has recorded."""
        before, self._running[name] = self._running.get(name), status
        baseline = self._run.study.baseline
        if status.metrics and (before is None or before.metrics != status.metrics):
            path = Path(status.metrics)
            self._tails[name] = Tail(path, frozenset(BANDS))
            compared = self._compared if cell.arm == baseline else ()
            self._claims.follow(cell.arm, cell.seed, path, claims_on(self._run.study, cell.arm), compared)
            if cell.arm != baseline:
                self._take_in_baseline(cell.seed)
        self._display.fallen(self._claims.poll(cell.arm, cell.seed))
        now = time.monotonic()
        if name in self._tails and now - self._judged.get(name, -HEALTH_SECONDS) >= HEALTH_SECONDS:
            self._judged[name] = now
            tail = self._tails[name]
            tail.read()
            series = {key: (np.array([*rows]), np.array([*rows.values()])) for key, rows in tail.series.items()}
            self._display.health(cell.label, examine(series, dict(flatten(cell.config.model_dump(mode="json")))))

    def _on_end(self, name: str, cell: Cell, record: TrialRecord) -> None:
        if record.status != "failed" and cell.label in (other.label for other in self._agenda.open()):
            return  # it is of older code or artifacts, and is being replaced
        self._ended.add(name)
        self._running.pop(name, None)
        self._tails.pop(name, None)
        status = read_status(self._run.folder.status_file(name))
        if status is not None:
            self._display.notes(status)  # the process may have begun and ended between two looks
        self._display.ended(record, status.seconds if status is not None else None)
        self._display.fallen(self._claims.news(self._fallen_by(record)))
        with suppress(Damaged):  # its trial runs again at the next start
            self._display.health(cell.label, health_of(self._run.folder, record))
        if (search := self._agenda.search) is not None:
            for number in [number for number, one in search.ended.items() if one.arm == record.arm]:
                self._display.line(search.describe(number))
        self._look_at_seed(cell)

    def _fallen_by(self, record: TrialRecord) -> list[Verdict]:
        """Claims that a trial has refuted by its end. The end of the baseline's trial also decides claims that are
        relative to it, on trials that ended before."""
        study, folder, plan = self._run.study, self._run.folder, self._agenda.plan
        fallen = of_record(study, folder, record, plan)
        if record.arm == study.baseline and self._relative:
            self._take_in_baseline(record.seed)
            others = [cell for cell in plan if cell.seed == record.seed and cell.arm != record.arm]
            for other in current_records(folder, others):
                fallen += [one for one in of_record(study, folder, other, plan) if one.name in self._relative]
        return fallen

    def _take_in_baseline(self, seed: int) -> None:
        """Let running trials be compared with the baseline's series of a seed, once its trial has ended."""
        folder = self._run.folder
        record = partner(self._run.study, folder, self._agenda.plan, seed) if self._compared else ""
        if not isinstance(record, str):
            with suppress(Damaged):
                series = {metric: read_series(folder, record, metric).records for metric in self._compared}
                self._claims.baseline_ended(seed, series)

    def _look_at_seed(self, cell: Cell) -> None:
        """Look at the study when a trial was the last of its chain, unless it was the last of all."""
        chains = {row.number: row.chain for row in self._run.study.replicates}
        plan = self._agenda.plan
        left = {chains.get(other.seed, other.seed) for other in plan if self._name(other) not in self._ended}
        seeds = {chains.get(other.seed, other.seed) for other in plan}
        if left and cell in plan and chains.get(cell.seed, cell.seed) not in left and len(seeds - left) > 1:
            self._interim.look()

    def _name(self, cell: Cell) -> str:
        return self._run.folder.cell_name(cell.arm, cell.seed)


def _mark(path: Path) -> tuple[int, int]:
    """Another one whenever the file, which is replaced whole, has been written. Raises `FileNotFoundError`."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino
