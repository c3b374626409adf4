"""The interaction heat map: does one knob change the effect of another? For every pair of crossed knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pipeline.run.metrics import METRICS
from reports.figures.style import DOUBLE, Plot, new_figure
from reports.findings.crossings import Crossing
from reports.findings.findings import Findings, once
from reports.records.load import StudyRecords
from reports.statistics.two_level import Estimate
from reports.text.say import say
from reports.text.words import interval, name, number, setting, signed

MOST = 6
"""Pairs of knobs drawn."""


def interactions(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw heat maps of the objective, and of its departure from the sum of the two knobs' own effects."""
    metric = records.study.objective.metric
    estimates = {result.arm: result.estimates.get(metric) for result in findings.arms}
    shown = [one for one in findings.crossings[:MOST] if any(map(estimates.get, one.crossing.arms.values()))]
    if not shown:
        return None
    figure = new_figure(DOUBLE, len(shown) * (0.95 + 0.42 * max(len(one.crossing.row_values) for one in shown)))
    data, alt, seeds = [], [], {}
    for axes, one in zip(figure.subplots(len(shown), 2, squeeze=False), shown, strict=True):
        crossing = one.crossing
        reached = {pair: estimates[arm] for pair, arm in crossing.arms.items()}
        departures = {(cell.row, cell.column): cell.contrast.estimate for cell in one.interactions}
        _heat(axes[0], crossing, reached, metric, signs=False)
        _heat(axes[1], crossing, departures, metric, signs=True)
        axes[0].set_title(f"{name(metric)} [{METRICS[metric].unit}]")
        axes[1].set_title("departure from the sum of both effects")
        for pair, arm in crossing.arms.items():
            data.append(_row(crossing, pair, arm, reached[pair], departures.get(pair)))
            seeds[arm] = len(findings.arm(arm).seeds)
            alt += [f"{arm} {number(estimate.value)}"] if (estimate := reached[pair]) else []
    single, counts = once(records, metric), (list(seeds.values()), list(seeds), len(shown), len(findings.crossings))
    caption = say("figures", "interactions", metric, records.baseline, single, *counts)
    text = f"Heat maps of crossed knobs: {'; '.join(alt)}."
    return Plot(figure, pd.DataFrame(data), "Interactions", caption, text, wide=True)


def _heat(
    axes: Axes, crossing: Crossing, cells: Mapping[tuple[Any, Any], Estimate | None], metric: str, *, signs: bool
) -> None:
    import seaborn as sns  # takes as long to import as several figures to draw

    rows, columns = crossing.row_values, crossing.column_values
    grid = [[cells.get((row, column)) for column in columns] for row in rows]
    values = np.array([[np.nan if one is None else one.value for one in line] for line in grid])
    show = signed if signs else interval
    texts = np.array(
        [["" if one is None else show(one, metric).replace(" ", "\n", 1) for one in line] for line in grid]
    )
    scale = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    colours = {"cmap": "vlag", "center": 0.0, "vmin": -scale, "vmax": scale} if signs else {"cmap": "cividis"}
    sns.heatmap(
        values, ax=axes, annot=texts, fmt="", annot_kws={"fontsize": 6.5, "linespacing": 1.15}, cbar=False,
        linewidths=1.5, xticklabels=list(map(setting, columns)), yticklabels=list(map(setting, rows)), **colours,
    )  # fmt: skip
    at = columns.index(crossing.baseline[1]) + 0.03, rows.index(crossing.baseline[0]) + 0.03
    axes.add_patch(Rectangle(at, 0.94, 0.94, fill=False, ec="black", lw=1.4, zorder=5))
    axes.set_xlabel(crossing.columns, fontsize=7.5)
    axes.set_ylabel(crossing.rows, fontsize=7.5)
    axes.tick_params(length=0, labelsize=7)
    axes.tick_params(axis="y", labelrotation=0)
    axes.grid(visible=False)


def _row(
    crossing: Crossing, pair: tuple[Any, Any], arm: str, reached: Estimate | None, more: Estimate | None
) -> dict[str, Any]:
    row = {"row_key": crossing.rows, "row": pair[0], "column_key": crossing.columns, "column": pair[1], "arm": arm}
    for label, estimate in (("value", reached), ("departure", more)):
        numbers = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
        row |= dict(zip((label, f"{label}_low", f"{label}_high"), numbers, strict=True))
    return row | {"seeds": reached.seeds if reached else 0, "prompts": reached.prompts if reached else 0}
