"""Watch a study: show how its trials come along, from their status files and records, whichever process runs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.config.trial import flatten
from pipeline.errors import Damaged
from pipeline.run.layout import TrialRecord
from pipeline.run.metrics import merged
from pipeline.run.store import is_held
from studies.claims.falsifiers import Verdict, evaluate
from studies.claims.symptoms import BANDS, examine, health_of
from studies.claims.verdicts import claims_on, of_record
from studies.definition.design import Cell
from studies.execution.agenda import Agenda, Key
from studies.execution.display import Display
from studies.execution.started import Started
from studies.execution.status import Status, read_status
from studies.tracking.sync import Running

LOOK_SECONDS = 0.5
"""Seconds between two looks at the status files, where reading them takes less than `LOOK_SHARE` of that."""
LOOK_SHARE = 0.04
JUDGE_SECONDS = 10.0
"""Seconds between two judgements of a running trial, which take time, that of a core, in proportion to its records."""
LEFT = ("elsewhere", "interrupted")
"""Outcomes of a process that ended before its task did."""


class Watch:
    """The state of a study as observed so far."""

    def __init__(self, run: Started, agenda: Agenda, display: Display) -> None:
        self._run, self._agenda, self._display = run, agenda, display
        self._cells: dict[str, Cell] = {}
        """Cells by the name under which their files stand."""
        self._written: dict[str, tuple[int, int]] = {}
        """Time and inode of each status file when it was last read; a clock's tick can hold two writings."""
        self._running: dict[Key, Status] = {}
        self._judged: dict[Key, float] = {}
        """The time when a running trial was last judged."""
        self._ended: set[Key] = set()
        self._fallen: set[tuple[str, int, str]] = set()
        """Arm, seed and name of the claims that have been shown as refuted."""
        self._next = 0.0

    def begin(self) -> None:
        """Take note of the trials that have ended before."""
        self._agenda.open()
        search, what = self._agenda.search, "trials"
        if search is not None and self._run.study.search is not None:
            what = "trials of the confirmation"
            self._display.recorded(len(search.ended), self._run.study.search.trials, "trials of the search")
        self._display.recorded(len(self._agenda.settled), len(self._agenda.plan), what)
        self._ended = {*self._agenda.ended()}
        for name, path in self._status_files():
            self._written[name] = _mark(path)

    def poll(self) -> None:
        """Look at changed files, unless the last look was just now."""
        began = time.monotonic()
        if began < self._next:
            return
        known = self._agenda.known()  # also trials that began and ended since the last look
        if len(known) != len(self._cells):
            self._cells = {self._run.folder.cell_name(cell.arm, cell.seed): cell for cell in known}
        for name, path in self._status_files():
            with suppress(FileNotFoundError):
                self._read(name, path)
        for key, record in self._agenda.ended().items():
            if key not in self._ended:
                self._on_end(record)
        now = time.monotonic()
        self._next = now + max(LOOK_SECONDS, (now - began) / LOOK_SHARE)

    def running(self) -> list[Running]:
        """The trials that run now and have begun to record."""
        return [
            Running(cell.arm, cell.seed, cell.config, Path(one.metrics))
            for cell in list(self._cells.values())
            if (one := self._running.get((cell.arm, cell.seed)))
            and one.metrics
            and is_held(self._run.folder.lock_file(one.lock))
        ]

    def look(self) -> None:
        """Look now."""
        self._next = 0.0
        self.poll()

    def _status_files(self) -> list[tuple[str, Path]]:
        """Names of the tasks that have not ended, and their status files."""
        folder, ended = self._run.folder.path / "status", {self._run.folder.cell_name(*key) for key in self._ended}
        return [(path.stem, path) for path in sorted(folder.glob("*.json")) if path.stem not in ended]

    def _read(self, name: str, path: Path) -> None:
        written = _mark(path)
        if self._written.get(name) == written or (status := read_status(path)) is None:
            return
        self._written[name] = written
        works = not status.outcome and is_held(self._run.folder.lock_file(status.lock))
        if works and name in self._cells:
            self._follow(self._cells[name], status)
        if works or (status.shared and status.outcome not in LEFT):
            self._display.shown(status)
        if status.shared and status.outcome:
            self._display.forget(status.label)

    def _follow(self, cell: Cell, status: Status) -> None:
        """Judge the claims on a running trial, and its health, from its records so far. Claims relative to the baseline
        wait for its end."""
        key, now = (cell.arm, cell.seed), time.monotonic()
        self._running[key] = status
        if now - self._judged.get(key, float("-inf")) < JUDGE_SECONDS:
            return
        self._judged[key] = now
        claims = [
            claim for claim in claims_on(self._run.study, cell.arm) if not claim.evaluated and not claim.relative_to
        ]
        try:
            rows = merged(Path(status.metrics)) if status.metrics else {}
        except FileNotFoundError:  # not begun, or just moved to its final place
            return

        def series(key: str) -> list[tuple[int, float]]:
            return [(step, row[key]) for step, row in rows.items() if key in row]

        verdicts = [evaluate(claim, series(claim.metric), 0) for claim in claims]
        self._show_fallen([replace(verdict, arm=cell.arm, seed=cell.seed) for verdict in verdicts])
        found = {key: (records[:, 0], records[:, 1]) for key in BANDS if len(records := np.array(series(key)))}
        self._display.health(cell.label, examine(found, dict(flatten(cell.config.model_dump(mode="json")))))

    def _on_end(self, record: TrialRecord) -> None:
        key, study, folder = (record.arm, record.seed), self._run.study, self._run.folder
        self._ended.add(key)
        self._running.pop(key, None)
        status = read_status(folder.status_file(folder.cell_name(*key)))
        if status is not None:
            self._display.notes(status)  # the process may have begun and ended between two looks
        self._display.ended(record, status.seconds if status is not None else None)
        self._show_fallen(of_record(study, folder, record, self._agenda.plan))
        with suppress(Damaged):  # its trial runs again at the next start
            self._display.health(f"{record.arm} seed {record.seed}", health_of(folder, record))
        if (search := self._agenda.search) is not None:
            for number in [number for number, one in search.ended.items() if one.arm == record.arm]:
                self._display.line(search.describe(number))

    def _show_fallen(self, verdicts: Sequence[Verdict]) -> None:
        for one in verdicts:
            if one.outcome == "FALSIFIED" and (one.arm, one.seed, one.name) not in self._fallen:
                self._fallen.add((one.arm, one.seed, one.name))
                self._display.fallen(one)


def _mark(path: Path) -> tuple[int, int]:
    """Another one whenever the file, which is replaced whole, has been written. Raises `FileNotFoundError`."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino
