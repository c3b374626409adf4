"""The figure of cost: what every trial spent of its caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pandas as pd
from matplotlib.ticker import FuncFormatter

from reports.figures.marks import rows_axis, side
from reports.figures.style import ALARM, SINGLE, Drawn, arm_styles, entries, legend, new_figure
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.words import counted, number
from studies.definition.design import Cell


@dataclass(frozen=True)
class Cap:
    """One limit of a trial and the column that counts against it."""

    name: str
    column: str
    unit: str
    scale: float
    """From the configured limit to the unit."""
    field: str
    """Its key in the configuration."""


CAPS = (
    Cap("gradient steps", "steps", "steps", 1.0, "train.steps"),
    Cap("wall clock", "cost/wall_s", "s", 3600.0, "caps.wall_clock_h"),
    Cap("modelled T4 time", "cost/t4_s", "s", 3600.0, "caps.wall_clock_h"),
    Cap("generated tokens", "cost/generated_tokens", "tokens", 1.0, "caps.generated_tokens"),
    Cap("peak memory", "cost/peak_memory_gib", "GiB", 1.0, "caps.memory_gib"),
)


def cost(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Draw the share of each cap that each trial used, on a logarithmic scale."""
    data = _spent(records)
    if data.empty:
        return None
    caps = {cap: rows for cap in CAPS if len(rows := data[data["cap"] == cap.name])}
    arms = [arm for arm in records.arms if arm in set(data["arm"])]
    styles = arm_styles(records.study)
    figure = new_figure(SINGLE, 0.9 + len(caps) * max(0.34, 0.075 * len(arms)))
    axes = figure.subplots()
    for at, (cap, rows) in enumerate(caps.items()):
        for place, arm in enumerate(arms):
            shares = rows.loc[rows["arm"] == arm, "share"]
            height = at - 0.3 + 0.6 * (place + 0.5) / len(arms)
            look: dict[str, Any] = {"marker": styles[arm].marker, "color": styles[arm].color, "mec": "white"}
            axes.plot(shares, [height] * len(shares), linestyle="", ms=4, mew=0.4, **look)
        most = rows.sort_values("share").iloc[-1]
        side(axes, at, _of(float(most["spent"]), float(most["limit"]), cap.unit))
    axes.axvline(1.0, color=ALARM, lw=1.0, linestyle=(0, (3, 2)), zorder=1)
    rows_axis(axes, [cap.name for cap in caps])
    axes.set_xscale("log")
    axes.set_xlim(min(0.1, float(data["share"].min()) / 2), 1.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_xlabel("used of the trial's cap [%], logarithmic scale")
    legend(figure, entries(styles, arms))
    trials = len(data[["arm", "seed"]].drop_duplicates())
    caption = (
        f"What each ended trial spent of its caps (n = {counted(trials, 'trial')}; measured, so no interval). Line: the"
        " cap, at which a trial ends and is shown as censored. Right: the trial that used most. The T4 time is"
        " modelled by a roofline from counted work, held against the cap on the wall clock."
    )
    alt = "; ".join(f"{cap.name} at most {100 * float(rows['share'].max()):.2g} %" for cap, rows in caps.items())
    return Drawn(figure, data, "Cost of a trial against its budget", caption, f"Share of each cap used: {alt}.")


def _spent(records: StudyRecords) -> pd.DataFrame:
    settings = {(cell.arm, cell.seed): cell.config for cell in records.plan if isinstance(cell, Cell)}
    rows: list[dict[str, Any]] = []
    for trial in records.trials.to_dict("records"):
        config = settings.get((trial["arm"], trial["seed"]))
        for cap in CAPS if config and trial["status"] not in ("missing", "stale") else ():
            spent, limit = _of_training(trial, cap.column), float(attrgetter(cap.field)(config)) * cap.scale
            if spent > 0:
                head = {"cap": cap.name, "unit": cap.unit, **{key: trial[key] for key in ("arm", "seed", "status")}}
                rows.append({**head, "spent": spent, "limit": limit, "share": spent / limit})
    return pd.DataFrame(rows)


def _of_training(trial: Mapping[Any, Any], column: str) -> float:
    """Return a quantity that a cap limits, without the charge for stages before training, which no cap ends."""
    before = [float(trial.get(f"cost/{name}_{column.removeprefix('cost/')}", 0.0)) for name in ("values", "opponents")]
    return float(trial.get(column, float("nan"))) - sum(charged for charged in before if charged > 0)


def _of(spent: float, limit: float, unit: str) -> str:
    first, second = _amount(spent, unit), _amount(limit, unit)
    return f"{first.removesuffix(' ' + second.rpartition(' ')[2])} of {second}"


def _amount(value: float, unit: str) -> str:
    """Return a value with its unit; many seconds in minutes or hours."""
    if unit == "s" and value >= 120:
        value, unit = (value / 60, "min") if value < 7200 else (value / 3600, "h")
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{number(value)} {unit}"
