"""The trials left in a study, and a hand's next task. Every hand works both out for itself, from records and locks."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pipeline.run.dag import StagePlan, likeness
from pipeline.run.layout import TrialRecord, write_atomic
from pipeline.run.store import Store, is_held, try_lock
from studies.definition.design import Cell, cells
from studies.definition.schema import Study
from studies.definition.search import confirmation
from studies.execution.recorded import own_stages
from studies.execution.records import is_current, sound_record, write_record
from studies.execution.search import Proposals
from studies.execution.started import Started, shared_of

AHEAD = 2
"""Trials for each hand that are to be ready before the next seed's shared stages are put off."""
DEATHS = 2
"""Deaths in a row without a new stage or checkpoint, after which a trial is given up."""

Key = tuple[str, int]


@dataclass(frozen=True)
class Task:
    """A trial, or the stages up to `until` that it shares with others."""

    run: Started
    cell: Cell
    until: str | None
    lock: str
    """Name of the lock that a hand holds while it has the task."""

    @property
    def label(self) -> str:
        """The task's name in texts for people."""
        return self.cell.label if self.until is None else f"shared stages of seed {self.cell.seed}"

    @property
    def name(self) -> str:
        """Name under which its files stand."""
        name = self.run.folder.cell_name(self.cell.arm, self.cell.seed)
        return name if self.until is None else f"{name}.shared"


class Agenda:
    """The trials of a study in their order, and which of them are settled: recorded as configured now, or given up."""

    def __init__(self, run: Started) -> None:
        self._run, self._store = run, Store(run.layout.store)
        self.search = (
            Proposals(run.study, run.profile, run.overrides, run.folder, self._record) if run.study.search else None
        )
        self.compared: Study = run.study
        """The study whose arms are compared: of a search, its confirmation, once that is known."""
        self.plan: list[Cell] = [] if self.search else run.cells()
        """The trials that are compared."""
        self.settled: dict[Key, TrialRecord] = {}
        self._open = self.plan
        self._shared: dict[Key, str] = {}
        self._own: dict[Key, StagePlan] = {}
        """The first stage that a trial lacks when it has all that it shares: planned once, since that takes
        milliseconds."""
        self._looked: dict[Key, int] = {}
        """Time of each record when it was last looked at."""

    def open(self) -> list[Cell]:
        """Trials that are not settled and can run as far as is known now, in their order."""
        if self.search is not None and not self.plan:
            if proposed := self.search.advance():
                return proposed
            if not self.search.over:
                return []
            self.compared = confirmation(self._run.study, self._run.folder)
            self.plan = self._open = cells(self.compared, self._run.profile, self._run.overrides)
        folder = self._run.folder
        written = {path.stem for path in folder.trial_files()} if self._open else set()
        for cell in self._open:
            if folder.cell_name(cell.arm, cell.seed) in written and (record := self._record(cell)) is not None:
                self.settled[cell.arm, cell.seed] = record
        self._open = [cell for cell in self._open if (cell.arm, cell.seed) not in self.settled]
        return self._open

    def is_left(self) -> bool:
        """Return whether any trial of the study has not ended, or is not known yet."""
        return bool(self.open()) or not self.plan

    def known(self) -> list[Cell]:
        """Trials whose configuration is known by now, also those that are settled."""
        self.open()
        return [*(self.search.proposed() if self.search is not None else ()), *self.plan]

    def ended(self) -> dict[Key, TrialRecord]:
        """The records of all trials that have ended, those of a search among them."""
        searched = self.search.ended.values() if self.search is not None else ()
        return {**{(one.arm, one.seed): one for one in searched}, **self.settled}

    def next(self) -> tuple[Task, FileLock] | None:
        """The task that a hand takes now, and its lock, which this process then holds; None where other hands have what
        is left, or have to end first.

        The order is seed by seed. While fewer than `AHEAD` trials a hand are ready, the shared stages of the next seed
        come before a trial that is ready, so that no core waits for them later.
        """
        ready, waiting, others = list[Cell](), None, set[str]()
        lacking = dict[str, StagePlan]()
        """Shared part -> its first missing stage."""
        for cell in self.open():
            if is_held(self._lock(cell)):
                others.add(cell.label)
                continue
            key, shared = (cell.arm, cell.seed), self._shared_lock(cell)
            if key not in self._own and shared not in lacking:
                stages = self._run.stages(cell)
                first = next((stage for stage in stages if not stage.cached), stages[-1])
                if first in shared_of(stages):
                    lacking[shared] = first
                else:
                    self._own[key] = first
            first = self._own.get(key) or lacking[shared]
            if not first.cached and self._store.is_building(first.stage, str(first.key)):  # be it for another study
                others.add(str(first.key))
            elif key in self._own:
                ready.append(cell)
                if len(ready) >= AHEAD * (len(others) + 1):
                    break
            elif is_held(self._run.folder.lock_file(shared)):
                others.add(shared)
            else:
                waiting = waiting or (cell, shared)
        if waiting is not None and len(ready) < AHEAD * (len(others) + 1):
            cell, shared = waiting
            if (lock := try_lock(self._run.folder.lock_file(shared))) is not None:
                return Task(self._run, cell, shared_of(self._run.stages(cell))[-1].stage, shared), lock
        for cell in ready:
            if (lock := try_lock(self._lock(cell))) is not None:
                self._own.pop((cell.arm, cell.seed))
                if self._record(cell) is None:  # else another hand has just finished it
                    return Task(self._run, cell, None, self._lock(cell).name), lock
                lock.release()
        return None

    def is_elsewhere(self) -> bool:
        """Return whether other processes run all trials that are left."""
        return all(is_held(self._lock(cell)) for cell in self.open()) and (self.search is None or bool(self.plan))

    def note_death(self, task: Task, reason: str) -> bool:
        """Note that a task's process died, and give its trial up where it came no further than at the death before.

        Returns whether it was given up: a trial has a record of that, and shared stages have none.
        """
        run, file = self._run, self._run.folder.path / "deaths" / f"{task.name}.json"
        deaths = [self._reached(task.cell)]
        with suppress(OSError, ValueError):
            deaths += [reached for reached in json.loads(file.read_text("utf-8")) if reached == deaths[0]]
        if len(deaths) < DEATHS:
            write_atomic(file, json.dumps(deaths))
            return False
        file.unlink(missing_ok=True)
        if task.until is None:
            write_record(run, task.cell, None, reason)
        return True

    def _record(self, cell: Cell) -> TrialRecord | None:
        with suppress(FileNotFoundError):
            written = self._run.folder.trial_file(cell.arm, cell.seed).stat().st_mtime_ns
            if self._looked.get((cell.arm, cell.seed)) == written:
                return None
            record = sound_record(self._run.folder, cell)
            if record is not None and (record.status == "failed" or is_current(record, self._run.stages(cell))):
                return record
            self._looked[cell.arm, cell.seed] = written
        return None

    def _shared_lock(self, cell: Cell) -> str:
        """Name of the lock on all that a trial shares with others: the same before, between and after these stages."""
        key = cell.arm, cell.seed
        if key not in self._shared:
            alike = likeness(self._run.module.STAGES, cell.config)
            own = own_stages(alike)
            shared = [digest for stage, digest in alike.items() if stage not in own]
            self._shared[key] = shared[-1] if shared else self._lock(cell).name
        return self._shared[key]

    def _lock(self, cell: Cell) -> Path:
        return self._run.folder.lock_file(self._run.folder.cell_name(cell.arm, cell.seed))

    def _reached(self, cell: Cell) -> list[str]:
        """The finished stages of a trial, and the checkpoints of the one that it is in."""
        stages = self._run.stages(cell)
        done = [str(stage.key) for stage in stages if stage.cached]
        first = next((stage for stage in stages if not stage.cached and stage.key), None)
        partial = self._store.partial(first.stage, str(first.key)) if first else None
        return done + (sorted(path.name for path in partial.rglob("update_*.pt")) if partial else [])
