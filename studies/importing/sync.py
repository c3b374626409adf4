"""Imported trials in MLflow, as those of any study."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.run.layout import Layout
from studies.design import planned
from studies.driver import only_driver
from studies.importing.run import Imported
from studies.schema import IMPORTED
from studies.sinks import StudySinks
from studies.verdicts import verdicts


def send(done: Imported, layout: Layout, warn: Callable[[str], None]) -> bool:
    """Tell MLflow what it does not know; False when it was away, and `ablate sync` makes up for it."""
    with only_driver(done.folder, done.study.name):
        sinks = StudySinks(done.study, IMPORTED, layout, done.folder, done.records[0].environment, warn)
        complete = sinks.sync(done.records)
        sinks.close("complete", verdicts(done.study, done.folder, planned(done.study)))
    return complete
