"""The result of a search: its trials, front, confirmed trials, and the file that keeps them. Imports no Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.run.layout import StudyFolder, TrialRecord, read_sealed, sealed, write_changed
from studies.definition.arms import BASELINE
from studies.definition.checks import CONFIRM
from studies.definition.schema import Study
from studies.definition.space import Objective

SEARCH = "search-"
"""Prefix of the arms of a search's trials, followed by a number."""
WORST = math.inf
ENDED = {"pruned": 1e3, "diverged": WORST, "failed": WORST}
"""Violations of trials that ended early, beyond any measured one: of those above the ceiling, then of broken ones."""


@dataclass(frozen=True)
class Tried:
    """One trial of a search that has ended."""

    number: int
    arm: str
    overrides: dict[str, Any]
    status: str
    values: dict[str, float]
    """Objectives and constrained metrics, as far as they were measured."""
    feasible: bool
    """True where the trial kept the constraints."""
    steps: int


def objectives(study: Study) -> tuple[Objective, ...]:
    """The objectives of a search."""
    return (study.search.objectives if study.search else ()) or (study.objective,)


def violations(study: Study, status: str, summary: Mapping[str, float]) -> dict[str, float]:
    """Return by how much a trial breaks each condition; one above 0 makes it infeasible.

    A diverged trial, or one without a value, is beyond every bound; so is a pruned one, whose KL at the end
    is that of a policy stopped early and would flatter it.
    """
    assert study.search is not None
    measured = {constraint: _measured(summary, constraint.metric) for constraint in study.search.constraints}
    bounds = {
        constraint.condition: constraint.violation(summary[constraint.metric]) if known else WORST
        for constraint, known in measured.items()
    }
    judged = all(_measured(summary, objective.metric) for objective in objectives(study))
    return {**bounds, "ended": ENDED.get(status, 0.0) if judged else WORST}


def tried(study: Study, number: int, overrides: Mapping[str, Any], record: TrialRecord) -> Tried:
    """Build a trial of a search from its record."""
    assert study.search is not None
    status, summary = record.status, record.summary
    aims = [objective.metric for objective in objectives(study)]
    bounded = [constraint.metric for constraint in study.search.constraints]
    values = {key: summary[key] for key in aims + bounded if _measured(summary, key)}
    feasible = all(value <= 0 for value in violations(study, status, summary).values())
    return Tried(number, arm(number), dict(overrides), status, values, feasible, record.steps)


def arm(number: int) -> str:
    """Name of a search's trial."""
    return f"{SEARCH}{number:03d}"


def pareto(trials: Sequence[Tried], aims: Sequence[Objective]) -> list[int]:
    """Numbers of the feasible trials that no other beats in one objective without losing in another."""
    points = {trial.number: _signed(trial, aims) for trial in trials if trial.feasible}
    return [
        number for number, point in points.items() if not any(_dominates(other, point) for other in points.values())
    ]


def choose(trials: Sequence[Tried], aims: Sequence[Objective], top: int, base: Mapping[str, Any]) -> list[Tried]:
    """The trials to confirm: feasible, each configuration once, and none that is the baseline (`base`) itself.

    One objective: the best. Several: from the first front, evenly along the first objective, its ends first;
    then from the front behind it.
    """
    left, seen = list[Tried](), [dict(base)]
    for trial in trials:
        if trial.feasible and trial.overrides not in seen:
            left.append(trial)
            seen.append(trial.overrides)
    chosen: list[Tried] = []
    while left and len(chosen) < top:
        front = set(pareto(left, aims))
        ordered = sorted(
            (trial for trial in left if trial.number in front),
            key=lambda trial: (*(-x for x in _signed(trial, aims)), trial.number),
        )
        n = min(top - len(chosen), len(ordered))
        chosen += [ordered[round(place * (len(ordered) - 1) / max(n - 1, 1))] for place in range(n)]
        left = [trial for trial in left if trial.number not in front]
    return chosen


def save(study: Study, folder: StudyFolder, trials: Sequence[Tried], confirmed: Sequence[Tried]) -> None:
    """Write ``search.json``, where that changes it."""
    content = {
        **_identity(study),
        "trials": [asdict(trial) for trial in trials],
        "pareto": pareto(trials, objectives(study)),
        "confirmed": [
            {"arm": f"{CONFIRM}{rank}", "number": trial.number, "overrides": trial.overrides}
            for rank, trial in enumerate(confirmed, 1)
        ],
    }
    write_changed(folder.search_file, sealed(content))


def load(study: Study, folder: StudyFolder) -> dict[str, Any] | None:
    """The file as last written, or None when there is none of this search. Raises `Damaged`."""
    if not folder.search_file.exists():
        return None
    with folder.naming_remedy():
        content = read_sealed(folder.search_file)
    return content if all(content.get(key) == value for key, value in _identity(study).items()) else None


def confirmation(study: Study, folder: StudyFolder) -> Study:
    """The study whose arms are compared: the study itself, or the baseline and the search's choice, on fresh seeds."""
    if study.search is None or study.arms is not None:
        return study
    saved = load(study, folder)
    arms = {BASELINE: {}, **{entry["arm"]: dict(entry["overrides"]) for entry in (saved or {}).get("confirmed", [])}}
    return study.model_copy(update={"arms": arms, "seeds": study.search.confirm.seeds})


def _identity(study: Study) -> dict[str, Any]:
    """The parts of a file that must be equal for it to belong to this search."""
    assert study.search is not None
    aims = [objective.model_dump(mode="json") for objective in objectives(study)]
    return {"search": study.search.model_dump(mode="json"), "objectives": aims, "seed": study.seeds[0]}


def _measured(summary: Mapping[str, float], key: str) -> bool:
    return math.isfinite(summary.get(key, math.nan))


def _signed(trial: Tried, aims: Sequence[Objective]) -> tuple[float, ...]:
    """Values by objective, larger is better."""
    return tuple(trial.values[aim.metric] * (1 if aim.direction == "maximize" else -1) for aim in aims)


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))
