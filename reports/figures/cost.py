"""The figure of cost: what every trial spent of its caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from pipeline.config.trial import TrialConfig
from reports.figures.forest import rows_axis, side
from reports.figures.style import ALARM, SINGLE, Drawn, arm_styles, legend_columns, new_figure
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.words import counted, number
from studies.definition.design import Cell


@dataclass(frozen=True)
class Cap:
    """One limit of a trial and what counts against it."""

    name: str
    column: str
    unit: str
    scale: float
    """From the configured limit to the unit."""
    field: str
    """Its key in the configuration."""

    def limit(self, cfg: TrialConfig) -> float:
        return float(attrgetter(self.field)(cfg)) * self.scale


CAPS = (
    Cap("gradient steps", "steps", "steps", 1.0, "train.steps"),
    Cap("wall clock", "cost/wall_s", "s", 3600.0, "caps.wall_clock_h"),
    Cap("modelled T4 time", "cost/t4_s", "s", 3600.0, "caps.wall_clock_h"),
    Cap("generated tokens", "cost/generated_tokens", "tokens", 1.0, "caps.generated_tokens"),
    Cap("peak memory", "cost/peak_memory_gib", "GiB", 1.0, "caps.memory_gib"),
)


def cost(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Share of each cap that each trial used, on a logarithmic scale."""
    data = _spent(records)
    if data.empty:
        return None
    caps = [cap for cap in CAPS if cap.name in set(data["cap"])]
    arms = [arm for arm in records.arms if arm in set(data["arm"])]
    styles = arm_styles(records.study)
    columns = legend_columns(arms, SINGLE)
    figure = new_figure(SINGLE, 0.9 + len(caps) * max(0.34, 0.075 * len(arms)) + 0.17 * -(-len(arms) // columns))
    axes = figure.subplots()
    for row, cap in enumerate(caps):
        of_cap = data[data["cap"] == cap.name]
        for place, arm in enumerate(arms):
            shares = of_cap.loc[of_cap["arm"] == arm, "share"]
            at = row - 0.3 + 0.6 * (place + 0.5) / len(arms)
            axes.plot(
                shares,
                [at] * len(shares),
                linestyle="",
                marker=styles[arm].marker,
                ms=3.6,
                color=styles[arm].color,
                mec="white",
                mew=0.4,
            )
        most = of_cap.sort_values("share").iloc[-1]
        side(axes, row, _of(float(most["spent"]), float(most["limit"]), cap.unit))
    axes.axvline(1.0, color=ALARM, lw=1.0, linestyle=(0, (3, 2)), zorder=1)
    rows_axis(axes, [cap.name for cap in caps])
    axes.set_xscale("log")
    axes.set_xlim(min(0.1, float(data["share"].min()) / 2), 1.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_xlabel("used of the trial's cap [%], logarithmic scale")
    marks = [
        Line2D(
            [], [], marker=styles[a].marker, color=styles[a].color, linestyle="", ms=4.5, mec="white", mew=0.4, label=a
        )
        for a in arms
    ]
    figure.legend(handles=marks, loc="outside upper left", ncols=columns, handlelength=1.2)
    trials = len(data[["arm", "seed"]].drop_duplicates())
    caption = (
        f"What each ended trial spent of its caps (n = {counted(trials, 'trial')}; measured, so no interval). Line: the"
        " cap, at which a trial ends and is shown as censored. Right: the trial that used most. The T4 time is"
        " modelled by a roofline from counted work, held against the cap on the wall clock."
    )
    alt = "Share of each cap used: " + "; ".join(
        f"{cap.name} at most {100 * float(data.loc[data['cap'] == cap.name, 'share'].max()):.2g} %" for cap in caps
    )
    return Drawn(figure, data, "Cost of a trial against its budget", caption, alt + ".")


def _spent(records: StudyRecords) -> pd.DataFrame:
    settings = {(cell.arm, cell.seed): cell.config for cell in records.plan if isinstance(cell, Cell)}
    rows: list[dict[str, Any]] = []
    for trial in records.trials.to_dict("records"):
        key = str(trial["arm"]), int(trial["seed"])
        for cap in CAPS:
            spent = _of_training(trial, cap.column)
            if spent > 0 and key in settings and trial["status"] not in ("missing", "stale"):
                limit = cap.limit(settings[key])
                head = {"cap": cap.name, "unit": cap.unit, "arm": key[0], "seed": key[1], "status": trial["status"]}
                rows.append({**head, "spent": spent, "limit": limit, "share": spent / limit})
    return pd.DataFrame(rows)


def _of_training(trial: Mapping[Any, Any], column: str) -> float:
    """A quantity that a cap limits: without what the trial is charged for stages before training, which no cap ends."""
    before = [float(trial.get(f"cost/{name}_{column.removeprefix('cost/')}", 0.0)) for name in ("values", "opponents")]
    return float(trial.get(column, float("nan"))) - sum(charged for charged in before if charged > 0)


def _of(spent: float, limit: float, unit: str) -> str:
    first, second = _amount(spent, unit), _amount(limit, unit)
    same = first.rpartition(" ")[2] == second.rpartition(" ")[2]
    return f"{first.rpartition(' ')[0] if same else first} of {second}"


def _amount(value: float, unit: str) -> str:
    """With its unit; seconds in the unit that people would say them in."""
    if unit == "s" and value >= 120:
        value, unit = (value / 60, "min") if value < 7200 else (value / 3600, "h")
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{number(value)} {unit}"
