"""Records of trials: when one stands for a cell, and how one is made from a trial's artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from pipeline.errors import Damaged
from pipeline.run.dag import StagePlan
from pipeline.run.layout import StageRef, Status, StudyFolder, TrialRecord
from pipeline.run.progress import TrialOutcome
from studies.definition.design import Cell
from studies.execution.started import Started

NO_OUTCOME = TrialOutcome({}, "failed", None, 0, {}, {}, {})


def sound_record(folder: StudyFolder, cell: Cell) -> TrialRecord | None:
    """The record of a cell as it is configured now; None where there is none that can be read."""
    with suppress(Damaged):
        record = folder.record(cell.arm, cell.seed)
        return record if record is not None and record.config_digest == cell.config.digest() else None
    return None


def is_newer(folder: StudyFolder, made: Path) -> bool:
    """Return whether a file made from a study's records is newer than the records and the study's start."""
    sources = [folder.study_file, folder.registration_file, folder.search_file, *folder.trial_files()]
    newest = max(path.stat().st_mtime_ns for path in sources if path.exists())
    return made.exists() and made.stat().st_mtime_ns > newest


def is_current(record: TrialRecord, stages: Sequence[StagePlan]) -> bool:
    """Return whether every artifact that a record names is in place, and is the one that would be built now."""
    planned = {stage.stage: (stage.key, stage.digest) for stage in stages if stage.cached}
    return len(planned) == len(stages) and planned == {
        name: (ref.key, ref.digest) for name, ref in record.stages.items()
    }


def write_record(run: Started, cell: Cell, outcome: TrialOutcome | None, reason: str | None = None) -> None:
    """Write the record of a trial that has ended; without an outcome, of one that was given up for a `reason`.

    Its time is that of the last stage's end, so that a record that is written again has the same bytes.
    """
    ended = outcome or NO_OUTCOME
    times = [one.finished for one in ended.artifacts.values()] or [datetime.now(UTC).isoformat(timespec="microseconds")]
    record = TrialRecord(
        study=run.study.name,
        profile=run.profile,
        arm=cell.arm,
        seed=cell.seed,
        config=cell.config.model_dump(mode="json"),
        config_digest=cell.config.digest(),
        status=cast(Status, ended.status),
        reason=reason or ended.reason,
        steps=ended.steps,
        stages={
            one.stage: StageRef(
                key=one.key,
                path=one.path.relative_to(run.layout.root).as_posix(),
                digest=one.digest,
                finished=one.finished,
            )
            for one in ended.artifacts.values()
        },
        summary=dict(ended.summary),
        ends=dict(ended.ends),
        cost=dict(ended.cost),
        environment={**run.module.environment(), **ended.execution},
        finished=times[-1] or "",
    )
    run.folder.write(record)
