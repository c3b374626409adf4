"""The smoke trial, really run, as a study of one arm and one seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from helpers import Recorder, smoke, write_record, write_sealed

from pipeline.run.layout import Layout, StageRef, TrialRecord
from pipeline.run.store import Artifact, read_manifest
from pipeline.trial import environment, run_trial


def recorded(layout: Layout, study: str = "demo", profile: str = "smoke", **changes: Any) -> TrialRecord:
    """The smoke trial as arm `base`, seed 0 of a study."""
    config = smoke(**changes)
    outcome = run_trial(config, layout, Recorder())
    record = TrialRecord(
        study=study,
        profile=profile,
        arm="base",
        seed=0,
        config=config.model_dump(mode="json"),
        config_digest=config.digest(),
        status="complete",
        steps=outcome.steps,
        stages={
            stage: StageRef(key=one.key, path=one.path.relative_to(layout.root).as_posix(), digest=one.digest)
            for stage, one in outcome.artifacts.items()
        },
        summary=dict(outcome.summary),
        cost=dict(outcome.cost),
        environment=environment(),
        finished="2026-01-01T00:00:00+00:00",
    )
    folder = layout.study(study, profile)
    write_record(folder, record)
    write_sealed(folder.study_file, {})
    return record


def artifacts(layout: Layout, record: TrialRecord, stages: Iterable[str]) -> dict[str, Artifact]:
    """What these stages of the trial have left."""
    found = {}
    for stage in stages:
        path = layout.root / record.stages[stage].path
        manifest = read_manifest(path)
        found[stage] = Artifact(stage, record.stages[stage].key, path, manifest.digest, manifest.meta)
    return found
