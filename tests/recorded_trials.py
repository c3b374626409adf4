"""The smoke trial, really run and recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from helpers import Recorder, put_record, smoke, write_sealed

from pipeline.run.layout import Layout, TrialRecord
from pipeline.run.store import Artifact, read_manifest
from pipeline.trial import environment, run_trial


def recorded(layout: Layout, study: str = "demo", profile: str = "smoke", **changes: Any) -> TrialRecord:
    """The smoke trial as arm `base`, seed 0 of a study."""
    config = smoke(**changes)
    outcome = run_trial(config, layout, Recorder())
    paths = [one.path for one in outcome.artifacts.values()]
    measured = {"summary": dict(outcome.summary), "cost": dict(outcome.cost), "environment": environment()}
    record = put_record(layout, config, paths, study, profile, steps=outcome.steps, **measured)
    write_sealed(layout.study(study, profile).study_file, {})
    return record


def artifacts(layout: Layout, record: TrialRecord, stages: Iterable[str]) -> dict[str, Artifact]:
    """Return the artifacts of these stages of the trial."""
    found = {}
    for stage in stages:
        path = layout.root / record.stages[stage].path
        manifest = read_manifest(path)
        found[stage] = Artifact(stage, record.stages[stage].key, path, manifest.digest, manifest.meta)
    return found
