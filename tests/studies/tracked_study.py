"""A study whose records no driver made, sent to MLflow pass by pass."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_trial
from light_study import record_of

from pipeline.run.layout import Layout, StudyFolder, sealed, write_atomic
from pipeline.run.progress import Reporter
from studies.claims.registration import content_of, register
from studies.claims.verdicts import verdicts
from studies.definition.design import Cell, cells
from studies.definition.schema import Study
from studies.tracking.sync import Running, Synced, View, sync

SETTINGS = {"train.steps": 64}


@dataclass
class Tracked:
    study: Study
    layout: Layout
    warnings: list[str] = field(default_factory=list)
    """Warnings."""

    def __post_init__(self) -> None:
        self.folder.path.mkdir(parents=True)
        self.start()

    @property
    def folder(self) -> StudyFolder:
        return self.layout.study(self.study.name, "tiny")

    @property
    def plan(self) -> list[Cell]:
        return cells(self.study, "tiny", SETTINGS)

    def start(self) -> None:
        head = register(content_of(self.study, "tiny", SETTINGS), self.folder, "unknown", print)
        content = {"study": {}, "overrides": SETTINGS, "registered": head}
        write_atomic(self.folder.study_file, sealed(content))

    def record(self, *numbers: int, **changes: Any) -> None:
        for cell in [self.plan[number] for number in numbers]:
            outcome = fake_trial.run_trial(cell.config, self.layout, Reporter())
            stages = {
                name: {"key": one.key, "path": f"store/{name}/{one.key}", "digest": one.digest, "finished": ended}
                for name, one in outcome.artifacts.items()
                if (ended := one.finished)
            }
            values: dict[str, Any] = {
                "study": self.study.name, "config": cell.config.model_dump(mode="json"), "config_digest": cell.digest,
                "status": outcome.status, "steps": outcome.steps, "stages": stages, "summary": outcome.summary,
                "environment": {"python": "3", "device": "abacus"},
            }  # fmt: skip
            record = record_of(cell.arm, cell.seed, **{**values, **changes})
            self.folder.write(record)

    def running(self, number: int, rows: int, half: bytes = b"") -> Running:
        """A trial that has written so many of its eight rows, and the begin of another."""
        cell = self.plan[number]
        done = fake_trial.run_trial(cell.config, self.layout, Reporter()).artifacts["train"]
        lines = (done.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        metrics = self.layout.store / "train" / ".partial" / done.key / "metrics.jsonl"
        metrics.parent.mkdir(parents=True, exist_ok=True)
        metrics.write_bytes(b"".join(lines[:rows]) + half)
        return Running(cell.arm, cell.seed, cell.config, metrics)

    def sync(self, *running: Running, status: Any = "running") -> Synced | None:
        """One pass; with the verdicts where the study is complete."""
        judged = verdicts(self.study, self.folder, self.plan) if status == "complete" else ()
        view = View(self.study, "tiny", self.layout, self.folder, self.plan, {"python": "3"})
        return sync(view, self.warnings.append, running=running, status=status, verdicts=judged)

    def moved(self, place: Path) -> Tracked:
        """A copy elsewhere. MLflow keeps databases open within a process, so one that is lost is lost in a copy."""
        shutil.copytree(self.layout.root, place)
        copy = object.__new__(Tracked)
        copy.study, copy.layout, copy.warnings = self.study, Layout(place), []
        return copy
