"""The parts of several figures: an estimate with its interval and its seeds, a row of a forest, their data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from reports.figures.style import GRID, INK, ArmStyle
from reports.findings.findings import ArmResult, Findings
from reports.records.load import StudyRecords
from reports.statistics.two_level import Estimate

MOST = 12
"""Lines that can be distinguished in one panel, and panels or rows in one figure."""
EITHER_END = 4


def point(
    axes: Axes,
    x: Estimate | float,
    y: Estimate | float,
    style: ArmStyle,
    seeds: Iterable[tuple[float, float]] = (),
    *,
    hollow: bool = False,
) -> None:
    """Draw an estimate over another one, or over a plain number, with its intervals, and its seeds as hollow marks; a
    `hollow` one is smaller."""
    xs, ys = zip(*seeds, strict=True) if (seeds := list(seeds)) else ((), ())
    axes.plot(xs, ys, linestyle="", marker=style.marker, ms=2.8, mfc="none", mec=style.color, mew=0.8, zorder=3)
    inside, edge = ("white", style.color) if hollow else (style.color, "white")
    size, width = (3.5, 0.8) if hollow else (6, 1.5)
    axes.errorbar(
        [_value(x)], [_value(y)], xerr=whiskers(x), yerr=whiskers(y), fmt=style.marker, color=style.color, ms=size,
        mfc=inside, mec=edge, mew=0.7, elinewidth=width, zorder=4,
    )  # fmt: skip


def row(axes: Axes, at: int, estimate: Estimate, seeds: Iterable[float], style: ArmStyle) -> None:
    """Draw one row of a forest plot: the estimate with its interval, and the seeds under it."""
    point(axes, estimate, at, style, [(value, at + 0.24) for value in seeds])


def whiskers(estimate: Estimate | float) -> list[list[float]] | None:
    """Return the lengths of an interval below and above the value; None without one."""
    if not isinstance(estimate, Estimate) or estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def _value(estimate: Estimate | float) -> float:
    return estimate.value if isinstance(estimate, Estimate) else estimate


def pairs(result: ArmResult, across: str, up: str) -> list[tuple[float, float]]:
    """Return the values of two metrics on each evaluated seed that has both."""
    xs, ys = result.per_seed.get(across, {}), result.per_seed.get(up, {})
    return [(xs[seed], ys[seed]) for seed in result.seeds if seed in xs and seed in ys]


def side(axes: Axes, at: int, text: str) -> None:
    """Write to the right of a row."""
    place: Any = ("axes fraction", "data")
    axes.annotate(
        text, (1.02, at), xycoords=place, va="center", ha="left", fontsize=7, color=INK, annotation_clip=False
    )


def rows_axis(axes: Axes, names: list[str]) -> None:
    """Name the rows of a forest plot, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for at in range(len(names) - 1):
        axes.axhline(at + 0.5, color=GRID, lw=0.5, zorder=0)


def with_seeds(
    head: Mapping[str, Any], estimate: Estimate, per_seed: Mapping[int, float], **more: Any
) -> list[dict[str, Any]]:
    """Return rows of a figure's data: the estimate, with `more` columns, and each of its seeds."""
    first = {**head, **more, "value": estimate.value, "low": estimate.low, "high": estimate.high}
    return [first, *({**head, "seed": seed, "value": value} for seed, value in per_seed.items())]


def estimate_frame(arms: Iterable[ArmResult], keys: Iterable[str]) -> pd.DataFrame:
    """Return the estimates of arms on some metrics, and their seeds, a row each."""
    found = [(result, key, result.estimates[key]) for result in arms for key in keys if key in result.estimates]
    rows = [
        with_seeds({"arm": result.arm, "metric": key}, estimate, result.per_seed.get(key, {}), prompts=estimate.prompts)
        for result, key, estimate in found
    ]
    return pd.DataFrame(
        [one for own in rows for one in own], columns=["arm", "metric", "seed", "value", "low", "high", "prompts"]
    )


def telling(records: StudyRecords, findings: Findings) -> list[str]:
    """Choose all arms up to `MOST`; of more the baseline and those at either end of the objective."""
    metric, baseline = records.study.objective.metric, records.study.baseline
    if len(records.arms) <= MOST:
        return records.arms
    values = {result.arm: result.estimates[metric].value for result in findings.arms if metric in result.estimates}
    ranked = sorted((arm for arm in values if arm != baseline), key=lambda arm: values[arm]) or records.arms
    ends = {baseline, *ranked[:EITHER_END], *ranked[-EITHER_END:]}
    return [arm for arm in records.arms if arm in ends]
