"""The interaction heat map: does one knob change what another does? For every pair of knobs whose values were
crossed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.run.metrics import METRICS
from reports.figures.curves import seed_counts
from reports.figures.style import DOUBLE, MUTED, Drawn, new_figure
from reports.findings.crossings import Crossing
from reports.findings.findings import Findings, once
from reports.records.load import StudyRecords
from reports.statistics.two_level import Estimate
from reports.text.words import name, number, signed, span

MOST = 6
"""Pairs of knobs drawn."""


def interactions(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Heat maps of the objective, and of its departure from the sum of the two knobs' own effects."""
    metric = records.study.objective.metric
    chosen = findings.crossings
    shown = [
        one for one in chosen[:MOST] if any(metric in findings.arm(arm).estimates for arm in one.crossing.arms.values())
    ]
    if not shown:
        return None
    most = max(len(one.crossing.row_values) for one in shown)
    figure = new_figure(DOUBLE, len(shown) * (0.95 + 0.42 * most))
    grid = figure.subplots(len(shown), 2, squeeze=False)
    data = []
    for (left, right), one in zip(grid, shown, strict=True):
        crossing = one.crossing
        reached = {pair: findings.arm(arm).estimates.get(metric) for pair, arm in crossing.arms.items()}
        departures = {(cell.row, cell.column): cell.contrast.estimate for cell in one.interactions}
        _heat(left, crossing, reached, metric, "cividis", None)
        _heat(right, crossing, departures, metric, "vlag", 0.0)
        left.set_title(f"{name(metric)} [{METRICS[metric].unit}]", fontsize=8)
        right.set_title("departure from the sum of both effects", fontsize=8)
        data += [_row(crossing, pair, arm, reached[pair], departures.get(pair)) for pair, arm in crossing.arms.items()]
    seeds = seed_counts({arm: len(findings.arm(arm).seeds) for one in shown for arm in one.crossing.arms.values()})
    caption = (
        f"Crossed knobs, everything else as in {records.baseline} (outlined). Left: {name(metric)} with its 95 %"
        " interval. Right: the cell minus what the row's and the column's effects at the baseline add up to; at 0"
        " neither knob changes what the other does. Mean [95 % interval of the hierarchical model], paired by"
        f" {'seed' if once(records, metric) else 'seed and prompt'} ({seeds}); not corrected for the number of cells."
    )
    if len(chosen) > len(shown):
        caption += f" {len(shown)} of {len(chosen)} crossed pairs are drawn."
    alt = "Heat maps of crossed knobs: " + "; ".join(
        f"{arm} {number(e.value)}"
        for one in shown
        for arm in one.crossing.arms.values()
        if (e := findings.arm(arm).estimates.get(metric))
    )
    return Drawn(figure, pd.DataFrame(data), "Interactions", caption, alt + ".", wide=True)


def _heat(
    axes: Axes,
    crossing: Crossing,
    cells: dict[tuple[Any, Any], Estimate | None],
    metric: str,
    palette: str,
    centre: float | None,
) -> None:
    import seaborn as sns

    means = {pair: estimate.value for pair, estimate in cells.items() if estimate is not None}
    values = np.array(
        [[means.get((row, column), np.nan) for column in crossing.column_values] for row in crossing.row_values]
    )
    names = [[_word(value) for value in axis] for axis in (crossing.row_values, crossing.column_values)]
    scale = max(map(abs, means.values()), default=0.0) or 1.0 if centre is not None else None
    sns.heatmap(
        values, ax=axes, cmap=palette, center=centre, vmin=-scale if scale else None, vmax=scale, cbar=False,
        linewidths=1.5,
        xticklabels=names[1], yticklabels=names[0],
    )  # fmt: skip
    for i, row in enumerate(crossing.row_values):
        for j, column in enumerate(crossing.column_values):
            estimate = cells.get((row, column))
            _annotate(axes, i, j, estimate, metric, signs=centre is not None)
    at = crossing.column_values.index(crossing.baseline[1]), crossing.row_values.index(crossing.baseline[0])
    axes.add_patch(_outline(*at))
    axes.set_xlabel(crossing.columns, fontsize=7.5)
    axes.set_ylabel(crossing.rows, fontsize=7.5)
    axes.tick_params(length=0, labelsize=7)
    axes.tick_params(axis="y", labelrotation=0)
    axes.grid(visible=False)


def _annotate(axes: Axes, i: int, j: int, estimate: Estimate | None, metric: str, *, signs: bool) -> None:
    if estimate is None:
        axes.text(j + 0.5, i + 0.5, "–", ha="center", va="center", fontsize=7, color=MUTED)
        return
    red, green, blue, _ = axes.collections[0].to_rgba(np.array([estimate.value]))[0]
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    text = (
        signed(estimate, metric).replace(" ", "\n", 1)
        if signs
        else f"{number(estimate.value, metric)}\n{span(estimate, metric)}"
    )
    axes.text(
        j + 0.5,
        i + 0.5,
        text,
        ha="center",
        va="center",
        fontsize=6.5,
        color="white" if dark else "black",
        linespacing=1.15,
    )


def _outline(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.03, row + 0.03), 0.94, 0.94, fill=False, ec="black", lw=1.4, zorder=5)


def _row(
    crossing: Crossing, pair: tuple[Any, Any], arm: str, reached: Estimate | None, more: Estimate | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "row_key": crossing.rows,
        "row": pair[0],
        "column_key": crossing.columns,
        "column": pair[1],
        "arm": arm,
    }
    for label, estimate in (("value", reached), ("departure", more)):
        numbers = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
        row |= {label: numbers[0], f"{label}_low": numbers[1], f"{label}_high": numbers[2]}
    return row | {"seeds": reached.seeds if reached else 0, "prompts": reached.prompts if reached else 0}


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
