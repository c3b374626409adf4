"""Imported trials in the store: an artifact each, named after what it was made from, and the records that point at
them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config.trial import canonical_json
from pipeline.errors import Gone, UserError
from pipeline.run.layout import (
    StageRef,
    StudyFolder,
    TrialRecord,
    read_json,
    record_text,
    sealed,
    write_atomic,
    write_json,
)
from pipeline.run.metrics_log import MetricsLog, to_parquet
from pipeline.run.store import Artifact, Store
from studies.definition.design import Foreign
from studies.definition.schema import IMPORTED
from studies.importing.logs import Log, Trial
from studies.importing.mapping import MappingFile
from studies.importing.notes import ends
from studies.importing.problems import DETAILS, Problem
from studies.importing.prompts import Outcomes
from studies.importing.trajectory import Trajectory

STAGE = "imported"
FORMAT = "studies.importing/2"
"""Part of every key: to be raised when the same log would give other series."""
_PLACES = {"include", "exclude", "files", "columns", "arms"}
"""What a mapping says of files, which changes nothing of a trial that was found."""


@dataclass(frozen=True)
class ImportedTrial:
    """One trial, read and checked: its series, its outcomes by prompt, or both."""

    arm: str
    seed: int
    mapping: MappingFile
    log: Log | None
    found: Trajectory | None
    prompts: Log | None
    outcomes: Outcomes | None
    problems: tuple[Problem, ...]

    @property
    def metrics(self) -> set[str]:
        """Of which the trial has a series or a final value."""
        series = {*self.found.series, *self.found.summary} if self.found else set()
        return series | set(self.outcomes.summary if self.outcomes else ())

    @property
    def summary(self) -> dict[str, float]:
        """Final measurements; those that follow from its prompts go before those that were logged."""
        return {**(self.found.summary if self.found else {}), **(self.outcomes.summary if self.outcomes else {})}

    @property
    def origin(self) -> dict[str, Any]:
        """Which files it was read from, as records keep it."""
        file = {"file": self.log.name, "sha256": self.log.digest} if self.log else {}
        by_prompt = {"prompts": self.prompts.name, "prompts_sha256": self.prompts.digest} if self.prompts else {}
        return {**file, **by_prompt}

    @property
    def mapped(self) -> dict[str, Any]:
        """What the mapping says of it, as records keep it."""
        return self.mapping.model_dump(mode="json", exclude_defaults=True, exclude=_PLACES)


def publish(store: Store, trial: ImportedTrial) -> dict[str, Artifact]:
    """Write a trial's series and outcomes into the store, or find them there; by the stage that would have made
    them."""
    identity = {
        "format": FORMAT,
        **trial.origin,
        "mapping": trial.mapped,
        "problems": [asdict(problem) for problem in trial.problems],
    }
    made: dict[str, Artifact] = {}
    if trial.found is not None:
        made["train"] = _stored(store, {**identity, "kind": "series"}, partial(_write_series, trial))
    if trial.outcomes is not None:
        made["evaluate"] = _stored(store, {**identity, "kind": "prompts"}, partial(_write_outcomes, trial))
    return made


def _stored(store: Store, identity: dict[str, Any], make: Callable[[Path], dict[str, Any]]) -> Artifact:
    key = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]
    return store.build(STAGE, key, identity, make, resumable=False)


def _write_series(trial: ImportedTrial, out: Path) -> dict[str, Any]:
    assert trial.found is not None
    with MetricsLog(out / "metrics.jsonl") as log:
        for step, values in rows_of(trial.found):
            log.append(step, values)
    to_parquet(out / "metrics.jsonl", out / "metrics.parquet")
    _write_details(trial, out)
    return {"steps": trial.found.steps}


def _write_outcomes(trial: ImportedTrial, out: Path) -> dict[str, Any]:
    assert trial.outcomes is not None
    trial.outcomes.table.to_parquet(out / "prompts.parquet", index=False)
    write_json(out / "summary.json", trial.outcomes.summary)
    _write_details(trial, out)
    return {"prompts": len(trial.outcomes.table)}


def _write_details(trial: ImportedTrial, out: Path) -> None:
    write_json(out / DETAILS, {**trial.origin, "problems": [asdict(problem) for problem in trial.problems]})


def rows_of(trajectory: Trajectory) -> Iterable[tuple[int, dict[str, float]]]:
    """The series of a trial as rows by gradient step, both cadences in one."""
    rows: dict[int, dict[str, float]] = {}
    for key, series in trajectory.series.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            rows.setdefault(step, {})[key] = value
    return sorted(rows.items())


def record_of(
    study: str, trial: ImportedTrial, artifacts: Mapping[str, Artifact], settings: Mapping[str, Any], root: Path
) -> TrialRecord:
    """What reports and verdicts need to know; there is no configuration of ours, so `config` says where it came
    from."""
    cell = Foreign(trial.arm, trial.seed)
    touched = max(log.path.stat().st_mtime for log in (trial.log, trial.prompts) if log is not None)
    series = {key: one.values for key, one in trial.found.series.items()} if trial.found else {}
    diverged = trial.found.diverged if trial.found else None
    return TrialRecord(
        study=study,
        profile=IMPORTED,
        arm=cell.arm,
        seed=cell.seed,
        config={"settings": dict(settings), "imported": trial.origin, "mapping": trial.mapped},
        config_digest=cell.digest,
        status="diverged" if diverged else "complete",
        reason=diverged,
        steps=trial.found.steps if trial.found else 0,
        stages={
            stage: StageRef(key=one.key, path=one.path.relative_to(root).as_posix(), digest=one.digest)
            for stage, one in artifacts.items()
        },
        summary=trial.summary,
        ends=ends(series),
        cost={},
        environment=trial.mapping.environment or {"environment": "not stated by the imported records"},
        finished=datetime.fromtimestamp(touched, UTC).isoformat(timespec="seconds"),
    )


def recorded_problems(root: Path, record: TrialRecord) -> list[Problem]:
    """What an earlier import found wrong with a trial; nothing where its artifact is gone."""
    for stage in record.stages.values():
        with suppress(Gone):
            return [Problem(**problem) for problem in read_json(root / stage.path / DETAILS)["problems"]]
    return []


@dataclass(frozen=True)
class ImportSummary:
    """What an import did to the records: labels of trials."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int


def recovered(folder: StudyFolder) -> dict[Trial, TrialRecord]:
    """The records as they are, by arm and seed; those of a call that was killed between its two steps come back."""
    trials, old = folder.path / "trials", folder.path / ".trials.old"
    if old.exists() and not trials.exists():
        old.replace(trials)
    return {(record.arm, record.seed): record for record in folder.records()}


def refuse_changes(before: Mapping[Trial, TrialRecord], trials: Sequence[ImportedTrial], name: str) -> None:
    """Refuse to put other content in the place of a recorded trial. Raises `UserError`."""
    changed = []
    for trial in trials:
        record = before.get((trial.arm, trial.seed))
        said = None if record is None else (record.config.get("imported"), record.config.get("mapping"))
        if said is not None and said != (trial.origin, trial.mapped):
            changed.append(f"{trial.arm} seed {trial.seed}")
    if changed:
        raise UserError(
            f"--name {name}: {shortened(changed)} {'is' if len(changed) == 1 else 'are'} recorded from other files or"
            " with another mapping; nothing was changed. Give --replace to let this import take the place of all that"
            f" is recorded under '{name}', or choose another name"
        )


def commit(
    folder: StudyFolder,
    before: Mapping[Trial, TrialRecord],
    records: Sequence[TrialRecord],
    started: Mapping[str, Any],
    problems: Sequence[Problem],
) -> ImportSummary:
    """Put all records in place of the old ones, in one step: readers see all of the old ones or all of the new.

    Nothing is written where nothing differs (the time at which a log was last touched does not count).
    """
    trials, new, old = folder.path / "trials", folder.path / ".trials.new", folder.path / ".trials.old"
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


def shortened(labels: Sequence[str], most: int = 6) -> str:
    """The first labels, and how many more there are."""
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "")


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
