"""The table of a search: the trials of the tuning. Those of the confirmation stand in the tables of the arms."""

from __future__ import annotations

from pipeline.run.metrics import METRICS
from reports.records.load import SearchResult
from reports.tables.table import Head, Table, TableCell, declared, words
from reports.text.words import name, number, setting
from studies.definition.search import Tried


def tuning_table(search: SearchResult) -> Table:
    """Show every trial of the search."""
    arms = {number: arm for arm, number in search.confirmed.items()}
    data = [
        {"number": trial.number, "arm": trial.arm, "status": trial.status, "steps": trial.steps}
        | {"feasible": trial.feasible, "pareto": trial.number in search.pareto, "confirmed_as": arms.get(trial.number)}
        | {f"knob/{key}": trial.overrides.get(key) for key in search.knobs}
        | {key: trial.values.get(key) for key in search.metrics}
        for trial in search.trials
    ]

    def knob(trial: Tried, key: str) -> str:
        return setting(trial.overrides[key]) if key in trial.overrides else "–"

    def kept(trial: Tried) -> TableCell:
        return TableCell("kept") if trial.feasible else TableCell("broken", tone="bad")

    units = {key: METRICS[key].unit.removeprefix("1") if key in METRICS else "" for key in search.metrics}
    shape = (
        (Head("trial"), lambda one: str(one.number)),
        *[(Head(key), lambda one, key=key: knob(one, key)) for key in search.knobs],
        (words("status"), lambda one: one.status),
        (Head("steps", "gradient steps"), lambda one: f"{one.steps:,}"),
        *[
            (Head(name(key), unit), lambda one, key=key: number(one.values.get(key), key))
            for key, unit in units.items()
        ],
        (words("constraints"), kept),
        (words("front"), lambda one: "on it" if one.number in search.pareto else "–"),
        (words("confirmed as"), lambda one: arms.get(one.number, "–")),
    )
    return declared("tuning", "Trials of the search", search.trials, shape, data, trials=len(search.trials))
