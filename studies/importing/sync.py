"""Imported trials in MLflow, as those of any study."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.run.layout import Layout
from studies.claims.verdicts import verdicts
from studies.definition.design import planned
from studies.definition.schema import IMPORTED
from studies.importing.run import Imported
from studies.tracking.sync import View, sync


def send(done: Imported, layout: Layout, warn: Callable[[str], None]) -> None:
    """Send MLflow what it lacks; where it is away, `ablate sync` does so later."""
    study, folder, plan = done.study, done.folder, planned(done.study)
    view = View(study, IMPORTED, layout, folder, plan, done.records[0].environment)
    sync(view, warn, status="complete", verdicts=verdicts(study, folder, plan))
