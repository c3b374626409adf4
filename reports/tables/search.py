"""Tables of a search: what was tried while tuning. What was confirmed stands in the tables of the arms."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.records.searches import SearchResult
from reports.tables.table import Head, Table, TableCell
from reports.text.words import name, number, setting


def tuning_table(search: SearchResult) -> Table:
    """Every trial of the search."""
    heads = (
        Head("trial"), *[Head(key) for key in search.knobs], Head("status", numeric=False),
        Head("steps", "gradient steps"),
        *[Head(name(key), METRICS[key].unit.removeprefix("1") if key in METRICS else "") for key in search.metrics],
        Head("constraints", numeric=False), Head("front", numeric=False), Head("confirmed as", numeric=False),
    )  # fmt: skip
    arms = {number: arm for arm, number in search.confirmed.items()}
    rows, data = [], []
    for trial in search.trials:
        front = trial.number in search.pareto
        rows.append(
            (
                TableCell(str(trial.number)),
                *[TableCell(setting(trial.overrides[key]) if key in trial.overrides else "–") for key in search.knobs],
                TableCell(trial.status),
                TableCell(f"{trial.steps:,}"),
                *[TableCell(number(trial.values.get(key), key)) for key in search.metrics],
                TableCell("kept" if trial.feasible else "broken", tone="" if trial.feasible else "bad"),
                TableCell("on it" if front else "–"),
                TableCell(arms.get(trial.number, "–")),
            )
        )
        record: dict[str, Any] = {
            "number": trial.number,
            "arm": trial.arm,
            "status": trial.status,
            "steps": trial.steps,
        }
        record |= {"feasible": trial.feasible, "pareto": front, "confirmed_as": arms.get(trial.number)}
        record |= {f"knob/{key}": trial.overrides.get(key) for key in search.knobs}
        data.append(record | {key: trial.values.get(key) for key in search.metrics})
    note = (
        f"{len(search.trials)} trials of the search on one seed each: no interval, and the best of many noisy trials"
        " looks better than it is. No finding of this page uses them: the chosen configurations ran again on fresh"
        " seeds, and the tables of the arms contain those runs alone. Front: no other trial that kept the"
        " constraints is better on every objective."
    )
    return Table("tuning", "Trials of the search", note, heads, tuple(rows), pd.DataFrame(data))
