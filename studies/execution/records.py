"""Records of trials: when one stands for a cell, and how one is made from what a trial left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from pipeline.errors import Damaged
from pipeline.run.dag import StagePlan
from pipeline.run.layout import Layout, StageRef, Status, StudyFolder, TrialRecord
from pipeline.run.outcome import TrialOutcome
from studies.definition.design import Cell


def sound_record(folder: StudyFolder, cell: Cell) -> TrialRecord | None:
    """The record of a cell as it is configured now; None where there is none that can be read."""
    with suppress(Damaged):
        record = folder.record(cell.arm, cell.seed)
        return record if record is not None and record.config_digest == cell.config.digest() else None
    return None


def current_records(folder: StudyFolder, plan: Sequence[Cell]) -> list[TrialRecord]:
    """Records of these cells in their order; those of other configurations are left out."""
    return [record for cell in plan if (record := sound_record(folder, cell)) is not None]


def is_current(record: TrialRecord, stages: Sequence[StagePlan]) -> bool:
    """Whether every artifact that a record names is in place, and is what would be built now."""
    planned = {stage.stage: (stage.key, stage.digest) for stage in stages if stage.cached}
    return len(planned) == len(stages) and planned == {
        name: (ref.key, ref.digest) for name, ref in record.stages.items()
    }


def record_of(
    study: str,
    profile: str,
    cell: Cell,
    layout: Layout,
    environment: dict[str, str],
    outcome: TrialOutcome | None,
    reason: str | None = None,
) -> TrialRecord:
    """The record of a trial that has ended; without an outcome, of one that was given up for a `reason`.

    Its time is that of the last stage's end, so that a record that is written again has the same bytes.
    """
    artifacts = list(outcome.artifacts.values()) if outcome else []
    common: dict[str, Any] = {
        "study": study,
        "profile": profile,
        "arm": cell.arm,
        "seed": cell.seed,
        "config": cell.config.model_dump(mode="json"),
        "config_digest": cell.config.digest(),
    }
    if outcome is None:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        empty: dict[str, Any] = {"steps": 0, "stages": {}, "summary": {}, "cost": {}, "finished": now}
        return TrialRecord(**common, **empty, status="failed", reason=reason, environment=environment)
    return TrialRecord(
        **common,
        status=cast(Status, outcome.status),
        reason=outcome.reason,
        steps=outcome.steps,
        stages={
            one.stage: StageRef(
                key=one.key,
                path=one.path.relative_to(layout.root).as_posix(),
                digest=one.digest,
                finished=one.finished,
            )
            for one in artifacts
        },
        summary=dict(outcome.summary),
        cost=dict(outcome.cost),
        environment={**environment, **outcome.execution},
        finished=artifacts[-1].finished or "",
    )
