"""A study's `optuna.db`, written from the records, for Optuna's own tools such as optuna-dashboard."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from pipeline.config.trial import canonical_json
from pipeline.run.layout import StudyFolder, TrialRecord, replacing
from pipeline.run.metrics import METRICS
from studies.definition.design import Planned, design_digest
from studies.definition.schema import Study
from studies.definition.space import Objective

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy

WRITTEN = "records"
"""Attribute of the study in Optuna: a digest of the records that it was written from."""


def write_optuna(
    study: Study,
    folder: StudyFolder,
    plan: Sequence[Planned],
    records: Sequence[TrialRecord],
    search: OptunaStudy | None = None,
) -> None:
    """Write the compared trials as a study of Optuna, and beside it the search that chose them.

    Does nothing where the file was written from the same records.
    """
    name = f"{study.name}-{design_digest(plan)}"
    ended = [[record.arm, record.seed, record.finished, record.status] for record in records]
    digest = hashlib.sha256(canonical_json([name, ended, search is not None]).encode()).hexdigest()[:16]
    if _written(folder) == digest:
        return

    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with replacing(folder.optuna_file) as beside:
        storage = f"sqlite:///{beside}"
        if search is not None:
            optuna.copy_study(
                from_study_name=search.study_name,
                from_storage=search._storage,
                to_storage=storage,
                to_study_name=f"{study.name}-search",
            )
        copy = optuna.create_study(storage=storage, study_name=name, direction=study.objective.direction)
        copy.add_trials(_trials(study, plan, records))
        copy.set_user_attr(WRITTEN, digest)


def objective_value(objective: Objective, status: str, summary: Mapping[str, float]) -> float:
    """What a trial counts as: its metric, or the worst value that the metric's direction knows."""
    value = summary.get(objective.metric)
    if status == "diverged" or value is None or value != value:
        metric = METRICS[objective.metric]
        return metric.low if objective.direction == "maximize" else metric.high
    return value


def _trials(study: Study, plan: Sequence[Planned], records: Sequence[TrialRecord]) -> list[Any]:
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    space = {
        "arm": CategoricalDistribution(list(dict.fromkeys(cell.arm for cell in plan))),
        "seed": CategoricalDistribution(list(dict.fromkeys(cell.seed for cell in plan))),
    }
    return [
        create_trial(
            state=TrialState.FAIL if one.status == "failed" else TrialState.COMPLETE,
            value=None if one.status == "failed" else objective_value(study.objective, one.status, one.summary),
            params={"arm": one.arm, "seed": one.seed},
            distributions=space,
            user_attrs={"arm": one.arm, "seed": one.seed, "config": one.config_digest},
        )
        for one in records
    ]


def _written(folder: StudyFolder) -> str | None:
    """The digest of the records that the file was written from; None where there is no file that can be read."""
    query = "SELECT value_json FROM study_user_attributes WHERE key = ?"
    with suppress(sqlite3.Error, TypeError, ValueError):
        uri = f"{folder.optuna_file.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return str(json.loads(database.execute(query, (WRITTEN,)).fetchone()[0]))
    return None
