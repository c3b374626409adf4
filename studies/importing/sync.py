"""Imported trials in MLflow, as those of any study."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.run.layout import Layout
from studies.claims.verdicts import verdicts
from studies.definition.design import planned
from studies.definition.schema import IMPORTED
from studies.execution.study_lock import only_driver
from studies.importing.run import Imported
from studies.tracking.study_runs import StudySinks


def send(done: Imported, layout: Layout, warn: Callable[[str], None]) -> bool:
    """Tell MLflow what it does not know; False when it was away, and `ablate sync` makes up for it."""
    with only_driver(done.folder, done.study.name):
        sinks = StudySinks(done.study, IMPORTED, layout, done.folder, done.records[0].environment, warn)
        sinks.plan = planned(done.study)
        complete = sinks.sync(done.records)
        sinks.close("complete", verdicts(done.study, done.folder, sinks.plan))
    return complete
