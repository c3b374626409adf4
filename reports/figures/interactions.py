"""The interaction heat map: does one knob change what another does? For every pair of knobs whose values were
crossed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.config.trial import flatten
from pipeline.run.metrics import METRICS
from reports.figures.curves import seed_counts
from reports.figures.style import DOUBLE, MUTED, Drawn, new_figure
from reports.findings.findings import Findings
from reports.findings.pairs import PER_PROMPT
from reports.records.load import StudyRecords
from reports.statistics import two_level as stats
from reports.statistics.two_level import Estimate
from reports.text.words import name, number, signed, span
from studies.definition.design import Cell

MOST = 6
"""Pairs of knobs drawn."""


@dataclass(frozen=True)
class Crossing:
    """Two knobs whose values were combined in full, with everything else as in the baseline."""

    rows: str
    columns: str
    row_values: tuple[Any, ...]
    column_values: tuple[Any, ...]
    arms: dict[tuple[Any, Any], str]
    """(row value, column value) -> arm."""
    baseline: tuple[Any, Any]


def crossings(records: StudyRecords) -> list[Crossing]:
    """Every pair of varied knobs with a full product of at least 2 x 2 around the baseline, in the order of the
    study."""
    own = {arm: dict(flatten(overrides)) for arm, overrides in records.study.arm_overrides().items()}
    varied = list(dict.fromkeys(key for overrides in own.values() for key in overrides))
    configs = {cell.arm: cell.config for cell in records.plan if isinstance(cell, Cell)}
    if set(configs) != set(own):
        return []  # run by another program: what its arms held equal is not known
    settings = {
        arm: dict(flatten(config.model_dump(mode="json", exclude={"profile"}))) for arm, config in configs.items()
    }
    values = {arm: {key: _plain(settings[arm].get(key, own[arm].get(key))) for key in varied} for arm in own}
    base = values[records.study.baseline]
    found = []
    for first, second in combinations(varied, 2):
        others = [key for key in varied if key not in (first, second)]
        arms = {
            (at[first], at[second]): arm for arm, at in values.items() if all(at[key] == base[key] for key in others)
        }
        rows, columns = (tuple(dict.fromkeys(pair[axis] for pair in arms)) for axis in (0, 1))
        if len(rows) > 1 and len(columns) > 1 and len(arms) == len(rows) * len(columns):
            found.append(Crossing(first, second, _ordered(rows), _ordered(columns), arms, (base[first], base[second])))
    return found


def interactions(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Heat maps of the objective, and of its departure from the sum of the two knobs' own effects."""
    metric = records.study.objective.metric
    chosen = crossings(records)
    shown = [one for one in chosen[:MOST] if any(metric in findings.arm(arm).estimates for arm in one.arms.values())]
    if not shown:
        return None
    most = max(len(one.row_values) for one in shown)
    figure = new_figure(DOUBLE, len(shown) * (0.95 + 0.42 * most))
    grid = figure.subplots(len(shown), 2, squeeze=False)
    data = []
    for (left, right), one in zip(grid, shown, strict=True):
        reached = {pair: findings.arm(arm).estimates.get(metric) for pair, arm in one.arms.items()}
        departures = {pair: departure(records, metric, one, pair) for pair in one.arms}
        _heat(left, one, reached, metric, "cividis", None)
        _heat(right, one, departures, metric, "vlag", 0.0)
        left.set_title(f"{name(metric)} [{METRICS[metric].unit}]", fontsize=8)
        right.set_title("departure from the sum of both effects", fontsize=8)
        data += [_row(one, pair, arm, reached[pair], departures[pair]) for pair, arm in one.arms.items()]
    seeds = seed_counts({arm: len(findings.arm(arm).seeds) for one in shown for arm in one.arms.values()})
    caption = (
        f"Crossed knobs, everything else as in {records.baseline} (outlined). Left: {name(metric)} with its 95 %"
        " interval. Right: the cell minus what the row's and the column's effects at the baseline add up to; at 0"
        " neither knob changes what the other does. Mean [95 % two-level bootstrap], paired by seed and prompt"
        f" ({seeds}); not corrected for the number of cells."
    )
    if len(chosen) > len(shown):
        caption += f" {len(shown)} of {len(chosen)} crossed pairs are drawn."
    alt = "Heat maps of crossed knobs: " + "; ".join(
        f"{arm} {number(e.value)}"
        for one in shown
        for pair, arm in one.arms.items()
        if (e := findings.arm(arm).estimates.get(metric))
    )
    return Drawn(figure, pd.DataFrame(data), "Interactions", caption, alt + ".", wide=True)


def departure(records: StudyRecords, metric: str, one: Crossing, pair: tuple[Any, Any]) -> Estimate | None:
    """``cell - row alone - column alone + baseline`` of one cell, paired by seed and prompt; None where a part of it
    was not evaluated.

    Zero by construction, hence None, in the baseline's own row and column, and where the metric is no mean over
    prompts.
    """
    (row, column), (base_row, base_column) = pair, one.baseline
    top, bottom = PER_PROMPT.get(metric, ("", ""))
    if row == base_row or column == base_column or not top or bottom:
        return None
    arms = [one.arms[place] for place in (pair, (row, base_column), (base_row, column), one.baseline)]
    seeds = [seed for seed in records.seeds if all(seed in records.evaluated(arm) for arm in arms)]
    prompts = records.shared_prompts([(arm, seed) for arm in arms for seed in seeds])
    if not seeds or not len(prompts):
        return None
    cell, row_alone, column_alone, base = (records.answers(arm, top, seeds, prompts) for arm in arms)
    return stats.mean(cell - row_alone - column_alone + base)


def _heat(
    axes: Axes,
    one: Crossing,
    cells: dict[tuple[Any, Any], Estimate | None],
    metric: str,
    palette: str,
    centre: float | None,
) -> None:
    import seaborn as sns

    found = {pair: estimate.value for pair, estimate in cells.items() if estimate is not None}
    values = np.array([[found.get((row, column), np.nan) for column in one.column_values] for row in one.row_values])
    names = [[_word(value) for value in axis] for axis in (one.row_values, one.column_values)]
    scale = max(map(abs, found.values()), default=0.0) or 1.0 if centre is not None else None
    sns.heatmap(
        values, ax=axes, cmap=palette, center=centre, vmin=-scale if scale else None, vmax=scale, cbar=False,
        linewidths=1.5,
        xticklabels=names[1], yticklabels=names[0],
    )  # fmt: skip
    for i, row in enumerate(one.row_values):
        for j, column in enumerate(one.column_values):
            estimate = cells.get((row, column))
            _annotate(axes, i, j, estimate, metric, signs=centre is not None)
    at = one.column_values.index(one.baseline[1]), one.row_values.index(one.baseline[0])
    axes.add_patch(_outline(*at))
    axes.set_xlabel(one.columns, fontsize=7.5)
    axes.set_ylabel(one.rows, fontsize=7.5)
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
    one: Crossing, pair: tuple[Any, Any], arm: str, reached: Estimate | None, more: Estimate | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "row_key": one.rows,
        "row": pair[0],
        "column_key": one.columns,
        "column": pair[1],
        "arm": arm,
    }
    for label, estimate in (("value", reached), ("departure", more)):
        numbers = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
        row |= {label: numbers[0], f"{label}_low": numbers[1], f"{label}_high": numbers[2]}
    return row | {"seeds": reached.seeds if reached else 0, "prompts": reached.prompts if reached else 0}


def _ordered(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers by size; words as the study gives them."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return tuple(sorted(values)) if numbers else values


def _plain(value: Any) -> Any:
    return tuple(_plain(one) for one in value) if isinstance(value, list | tuple) else value


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
