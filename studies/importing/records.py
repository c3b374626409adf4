"""Imported trials in the store: an artifact each, named after what it was made from, and the records that point at
them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.config.trial import canonical_json
from pipeline.run.layout import StageRef, StudyFolder, TrialRecord, record_text, sealed, write_atomic, write_json
from pipeline.run.metrics_log import MetricsLog, to_parquet
from pipeline.run.store import Artifact, Store, file_digest
from studies.definition.design import Foreign
from studies.definition.schema import IMPORTED
from studies.importing import mapping as mappings
from studies.importing.files import Source
from studies.importing.problems import DETAILS, Problem
from studies.importing.trajectory import Trajectory

STAGE = "imported"
FORMAT = "studies.importing/1"
"""Part of every key: to be raised when the same log would give other series."""


@dataclass(frozen=True)
class ImportedTrial:
    """One log, read and checked."""

    source: Source
    found: Trajectory
    problems: tuple[Problem, ...]


def publish(store: Store, trial: ImportedTrial, mapping: mappings.Mapping) -> Artifact:
    """Write a trial's series into the store, or find them there."""
    identity = {
        "format": FORMAT,
        "name": trial.source.name,
        "sha256": file_digest(trial.source.path),
        "mapping": mapping.model_dump(mode="json"),
        "problems": [asdict(problem) for problem in trial.problems],
    }
    key = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]

    def make(out: Path) -> dict[str, Any]:
        with MetricsLog(out / "metrics.jsonl") as log:
            for step, values in rows_of(trial.found):
                log.append(step, values)
        to_parquet(out / "metrics.jsonl", out / "metrics.parquet")
        write_json(
            out / DETAILS, {"file": trial.source.name, "sha256": identity["sha256"], "problems": identity["problems"]}
        )
        return {"steps": trial.found.steps}

    return store.build(STAGE, key, identity, make, resumable=False)


def rows_of(found: Trajectory) -> Iterable[tuple[int, dict[str, float]]]:
    """The series of a trial as rows by gradient step, both cadences in one."""
    rows: dict[int, dict[str, float]] = {}
    for key, one in found.series.items():
        for step, value in zip(one.steps.tolist(), one.values.tolist(), strict=True):
            rows.setdefault(step, {})[key] = value
    return sorted(rows.items())


def record_of(
    study: str,
    trial: ImportedTrial,
    artifact: Artifact,
    settings: Mapping[str, Any],
    mapping: mappings.Mapping,
    root: Path,
) -> TrialRecord:
    """What reports and verdicts need to know; there is no configuration of ours, so `config` says where it came
    from."""
    cell = Foreign(trial.source.arm, trial.source.seed)
    modified = datetime.fromtimestamp(trial.source.path.stat().st_mtime, UTC)
    return TrialRecord(
        study=study,
        profile=IMPORTED,
        arm=cell.arm,
        seed=cell.seed,
        config={
            "settings": dict(settings),
            "imported": {"file": trial.source.name, "sha256": file_digest(trial.source.path)},
            "mapping": mapping.model_dump(mode="json", exclude_defaults=True),
        },
        config_digest=cell.digest,
        status="diverged" if trial.found.diverged else "complete",
        reason=trial.found.diverged,
        steps=trial.found.steps,
        stages={
            "ppo": StageRef(key=artifact.key, path=artifact.path.relative_to(root).as_posix(), digest=artifact.digest)
        },
        summary=trial.found.summary,
        cost={},
        environment=mapping.environment or {"environment": "not stated by the imported records"},
        finished=modified.isoformat(timespec="seconds"),
    )


@dataclass(frozen=True)
class ImportSummary:
    """What an import did to the records: labels of trials."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int


def commit(
    folder: StudyFolder, records: Sequence[TrialRecord], started: Mapping[str, Any], problems: Sequence[Problem]
) -> ImportSummary:
    """Put all records in place of the old ones, in one step: readers see all of the old ones or all of the new.

    Nothing is written where nothing differs (the time at which a log was last touched does not count).
    """
    trials, new, old = folder.path / "trials", folder.path / ".trials.new", folder.path / ".trials.old"
    if old.exists() and not trials.exists():
        old.replace(trials)  # an earlier call was killed between its two steps
    before = {(record.arm, record.seed): record for record in folder.records()}
    after = {(record.arm, record.seed): record for record in records}
    same = {cell for cell, record in after.items() if cell in before and _content(before[cell]) == _content(record)}
    change = ImportSummary(
        added=tuple(f"{arm} seed {seed}" for arm, seed in after if (arm, seed) not in before),
        changed=tuple(f"{arm} seed {seed}" for arm, seed in after if (arm, seed) in before and (arm, seed) not in same),
        removed=tuple(f"{arm} seed {seed}" for arm, seed in before if (arm, seed) not in after),
        unchanged=len(same),
    )
    if change.added or change.changed or change.removed:
        shutil.rmtree(new, ignore_errors=True)
        for cell, record in after.items():
            kept = before[cell] if cell in same else record
            write_atomic(new / folder.trial_file(*cell).name, record_text(kept))
        _swap(trials, new, old)
    write_atomic(folder.study_file, sealed(started))  # the order of keys is that of the arms
    _write_problems(folder, problems)
    return change


def _swap(current: Path, new: Path, old: Path) -> None:
    shutil.rmtree(old, ignore_errors=True)
    if current.exists():
        current.replace(old)
    try:
        new.replace(current)
    except OSError:
        if old.exists():
            old.replace(current)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _content(record: TrialRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude={"finished"})


def _write_problems(folder: StudyFolder, problems: Sequence[Problem]) -> None:
    """All of them, for programs; without any there is no file."""
    path = folder.path / "problems.csv"
    if not problems:
        path.unlink(missing_ok=True)
        return
    import pandas as pd

    write_atomic(path, pd.DataFrame([asdict(problem) for problem in problems]).to_csv(index=False, lineterminator="\n"))
