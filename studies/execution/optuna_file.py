"""A study's `optuna.db`, written from the records, for Optuna's own tools such as optuna-dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.run.layout import StudyFolder, TrialRecord, replacing
from pipeline.run.metrics import METRICS
from studies.definition.design import Planned, design_digest
from studies.definition.schema import Study
from studies.definition.space import Objective
from studies.execution.records import is_newer

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy


def write_optuna(
    study: Study,
    folder: StudyFolder,
    plan: Sequence[Planned],
    records: Sequence[TrialRecord],
    search: Callable[[], OptunaStudy | None],
) -> None:
    """Write the compared trials as a study of Optuna, and beside it the search that chose them, where `search` gives
    one.

    Does nothing where the file is newer than the records.
    """
    if is_newer(folder, folder.optuna_file):
        return

    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with replacing(folder.optuna_file) as beside:
        storage = f"sqlite:///{beside}"
        if (searched := search()) is not None:
            optuna.copy_study(
                from_study_name=searched.study_name,
                from_storage=searched._storage,
                to_storage=storage,
                to_study_name=f"{study.name}-search",
            )
        name, direction = f"{study.name}-{design_digest(plan)}", study.objective.direction
        copy = optuna.create_study(storage=storage, study_name=name, direction=direction)
        copy.add_trials(_trials(study, plan, records))


def objective_value(objective: Objective, status: str, summary: Mapping[str, float]) -> float:
    """Return a trial's value of the metric, or the worst value in the metric's direction."""
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
