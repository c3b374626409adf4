"""Figures with drift on the x-axis: proxy against gold with the alarm, and arms compared at equal drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from reports.figures.curves import seed_counts
from reports.figures.emphasis import MOST, background, emphasis
from reports.figures.forest import bar, rows_axis, side
from reports.figures.style import (
    ALARM,
    DOUBLE,
    INK,
    MUTED,
    SINGLE,
    Drawn,
    arm_styles,
    legend_columns,
    new_figure,
    square_root,
)
from reports.findings.findings import Findings
from reports.findings.trajectories import ArmAlarm, MatchedKL, kl_source
from reports.records.load import StudyRecords
from reports.statistics.drift import SMOOTH, KLCurve, common_range
from reports.text.words import counted, listed, number, signed

Array = NDArray[np.float64]
GOLD, PROXY = "objective/gold", "objective/scores"
PROXY_DASHES = (0, (3, 1.5))
_POINTS = 80


def overoptimisation(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Proxy and gold over the drift of each arm's training, both in standard deviations of reference samples."""
    alarms = {found.arm: found for found in findings.alarms}
    known = {arm: found for arm in records.arms if (found := _of_arm(findings, arm, GOLD, PROXY))}
    if not known or records.prompts.empty:
        return None
    arms = {arm: known[arm] for arm in _panels(list(known), alarms, records.study.baseline)}
    centre, spread = records.reference_gold()
    spread = spread or 1.0
    styles = arm_styles(records.study)
    columns = 1 if len(arms) == 1 else 2 if len(arms) <= 6 else 3
    rows = -(-len(arms) // columns)
    figure = new_figure(DOUBLE if columns == 3 else SINGLE, 1.75 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    data = []
    for axes, (arm, found) in zip(grid.flat, arms.items(), strict=False):
        for key, dashes in ((PROXY, PROXY_DASHES), (GOLD, "-")):
            lines = {
                seed: (c.kl, c.values[key] if key == PROXY else (c.values[key] - centre) / spread)
                for seed, c in found.items()
            }
            data += _lines(axes, lines, styles[arm].color, dashes, arm, key)
        _alarm(axes, alarms.get(arm))
        axes.set_title(arm, fontsize=8)
        square_root(axes.xaxis, max(float(c.kl[-1]) for c in found.values()), compact=True)
        axes.axhline(0, color=MUTED, lw=0.6, zorder=1)
    for axes in list(grid.flat)[len(arms) :]:
        axes.set_axis_off()
    figure.supxlabel("KL to the reference [nats per sequence], square-root scale", fontsize=8)
    figure.supylabel("reward [std of reference samples]", fontsize=8)
    figure.legend(handles=_legend(), loc="outside upper left", ncols=3)
    said = _said([alarms[arm] for arm in known if arm in alarms])
    caption = (
        "Proxy (dashed) and gold reward (solid) over drift along each arm's training; thick: mean over seeds where all"
        f" had drifted as far; thin: single seeds ({seed_counts({arm: len(found) for arm, found in arms.items()})})."
        f" Running means of {SMOOTH} updates, ordered by the monotone trend of KL ({kl_source(records)}). Gold is"
        f" standardised by the reference's mean {number(centre)} and standard deviation {number(spread)} judge points,"
        " as the proxy is by construction. Where the lines part, the proxy is being over-optimised. Alarm: the KL at"
        " which gold turned down beyond noise while the proxy still rose, mean over seeds with its 95 % interval:"
        f" {said}. The x-axes differ."
    )
    if len(arms) < len(known):
        caption += f" {len(arms)} of {len(known)} arms are drawn, those with an alarm and the baseline first."
    alt = (
        "One panel per arm: proxy reward and gold reward against the KL to the reference. Alarm of over-optimisation:"
        f" {said}."
    )
    return Drawn(figure, pd.concat(data, ignore_index=True), "Proxy against gold", caption, alt, wide=columns == 3)


def matched(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Gold over drift for all arms in one panel, and the differences to the baseline at equal drift."""
    rows = [row for row in findings.matched if row.metric == GOLD]
    if not rows:
        return None
    where = "at half the distance √KL that all their seeds went through, and at all of it"
    if len(rows) > 2 * MOST:
        rows, where = [row for row in rows if row.place == "farthest"], "at all the drift that their seeds went through"
    styles, shining = arm_styles(records.study), emphasis(records, findings)
    figure = new_figure(DOUBLE, max(3.3, 1.0 + 0.3 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    data, most = [], 1.6 * max(row.kl for row in rows)
    for arm in records.arms:
        found = _of_arm(findings, arm, GOLD)
        if found:
            lines = {
                seed: (c.kl[c.kl <= most], c.values[GOLD][c.kl <= most]) for seed, c in found.items() if c.kl[0] <= most
            }
            data += _lines(
                left if arm in shining else None,
                lines,
                styles[arm].color,
                styles[arm].dashes,
                arm,
                GOLD,
                styles[arm].marker,
            )
    means = {
        arm: (frame["kl"], frame["value"])
        for frame in data
        if (frame["part"] == "mean").all()
        for arm in frame["arm"].unique()
    }
    background(left, [line for arm, line in means.items() if arm not in shining])
    for row in (row for row in rows if row.arm in shining):
        left.plot(
            [row.kl],
            [row.arm_value.value],
            marker=styles[row.arm].marker,
            ms=5.5,
            color=styles[row.arm].color,
            mec="white",
            zorder=6,
        )
    square_root(left.xaxis, most / 1.12)
    left.set_xlabel("KL to the reference [nats per sequence],\nsquare-root scale")
    left.set_ylabel("gold reward on rollouts [judge points]")
    left.set_title("along the training", fontsize=8)
    for at, row in enumerate(rows):
        bar(right, at, row.difference, list(row.per_seed.values()), styles[row.arm])
        side(right, at, signed(row.difference, "eval/gold"))
    right.axvline(0, color=INK, lw=0.8, zorder=1)
    rows_axis(right, [f"{row.arm}\nat {number(row.kl)} nats" for row in rows])
    right.set_xlabel(f"Δ gold to {records.study.baseline}\n[judge points]")
    right.set_title("at equal drift", fontsize=8)
    figure.legend(
        handles=shining.handles(styles),
        loc="outside upper left",
        ncols=legend_columns(shining.arms, DOUBLE),
        handlelength=2.6,
    )
    data += [_matched_rows(row) for row in rows]
    caption = (
        "Left: gold reward over drift, mean over seeds where all had drifted as far (thin: single seeds); large marks:"
        f" where arms are compared, and not drawn far beyond. Right: difference to {records.baseline} where both had"
        f" drifted equally far: {where}. Point: mean; small marks: seeds; bars: 95 % Student over seeds"
        f" ({seed_counts({row.arm: row.difference.seeds for row in rows})}). Equal drift is not equal training: the"
        f" arms got there after different numbers of steps.{shining.sentence}"
    )
    alt = "Gold reward over KL for all arms, and a forest plot of differences at equal KL: " + "; ".join(
        f"{row.arm} at {number(row.kl)} nats {signed(row.difference, 'eval/gold')}" for row in rows
    )
    return Drawn(figure, pd.concat(data, ignore_index=True), "Gold reward at matched KL", caption, alt + ".", wide=True)


def _panels(arms: list[str], alarms: dict[str, ArmAlarm], baseline: str) -> list[str]:
    """At most `MOST` arms in the order of the study: those with an alarm and the baseline before others."""
    ranked = sorted(arms, key=lambda arm: (arm not in alarms or alarms[arm].kl is None, arm != baseline))
    chosen = set(ranked[:MOST])
    return [arm for arm in arms if arm in chosen]


def _of_arm(findings: Findings, arm: str, *keys: str) -> dict[int, KLCurve]:
    """Seed -> trajectory, of the seeds of an arm that recorded all these metrics."""
    return {
        seed: curve for (name, seed), curve in findings.curves.items() if name == arm and set(keys) <= set(curve.values)
    }


def _lines(
    axes: Axes | None,
    lines: dict[int, tuple[Array, Array]],
    color: str,
    dashes: Any,
    arm: str,
    key: str,
    marker: str = "",
) -> list[pd.DataFrame]:
    """Thin lines of seeds and a thick one of their mean at equal KL, drawn where there are axes; the numbers."""
    data = []
    if axes is not None:
        paths = [np.column_stack([kl, value]) for kl, value in lines.values()]
        thin = LineCollection(
            paths, colors=color, linestyles=[dashes], linewidths=0.6, alpha=0.5 if len(lines) > 1 else 1.0
        )
        axes.add_collection(thin)
        axes.autoscale_view()
    for seed, (kl, value) in lines.items():
        data.append(pd.DataFrame({"arm": arm, "metric": key, "part": "seed", "seed": seed, "kl": kl, "value": value}))
    shared = _mean_line(list(lines.values()))
    if shared is not None and len(lines) > 1:
        kl, value = shared
        if axes is not None:
            look: dict[str, Any] = {
                "marker": marker or None,
                "markevery": (6, 16),
                "ms": 3.2,
                "mec": "white",
                "mew": 0.4,
            }
            axes.plot(kl, value, color=color, linestyle=dashes, lw=1.6, **look)
        data.append(pd.DataFrame({"arm": arm, "metric": key, "part": "mean", "kl": kl, "value": value}))
    return data


def _mean_line(lines: Sequence[tuple[Array, Array]]) -> tuple[Array, Array] | None:
    """Mean over seeds at equal KL, on the range that all of them went through, evenly spaced in sqrt(KL)."""
    both = common_range([KLCurve(kl, {}, kl, kl) for kl, _ in lines])
    if both is None:
        return None
    kl = np.linspace(both[0] ** 0.5, both[1] ** 0.5, _POINTS) ** 2
    return kl, np.mean([np.interp(kl, x, y) for x, y in lines], axis=0)


def _alarm(axes: Axes, found: ArmAlarm | None) -> None:
    if found is None or found.kl is None:
        return
    if found.kl.low is not None and found.kl.high is not None:
        axes.axvspan(found.kl.low, found.kl.high, color=ALARM, alpha=0.08, lw=0, zorder=0)
    axes.axvline(found.kl.value, color=ALARM, lw=1.0, linestyle=(0, (2, 1.5)), zorder=2)
    axes.annotate(
        f"{number(found.kl.value)} nats", xy=(found.kl.value, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0),
        textcoords="offset points", fontsize=7, color=ALARM, va="bottom", ha="left",
    )  # fmt: skip


def _said(found: Sequence[ArmAlarm]) -> str:
    parts = []
    for one in found:
        if one.kl is not None:
            steps = sorted(round(alarm.step) for alarm in one.alarms.values())
            when = f"step {steps[0]:,}" if len(set(steps)) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
            parts.append(
                f"{one.arm} at {number(one.kl.value)} nats ({when}) in {len(one.alarms)} of"
                f" {counted(one.trials, 'trial')}"
            )
    quiet = [one for one in found if one.kl is None]
    if quiet:
        trials = counted(sum(one.trials for one in quiet), "trial")
        parts.append(
            f"none in the {trials} of"
            f" {listed([one.arm for one in quiet]) if len(quiet) <= 4 else counted(len(quiet), 'other arm')}"
        )
    return "; ".join(parts) or "not looked for"


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=INK, linestyle=PROXY_DASHES, label="proxy (trained on)"),
        Line2D([], [], color=INK, linestyle="-", label="gold (judge)"),
        Line2D([], [], color=ALARM, linestyle=(0, (2, 1.5)), lw=1.0, label="alarm"),
    ]


def _matched_rows(row: MatchedKL) -> pd.DataFrame:
    e = row.difference
    head = {"arm": row.arm, "metric": row.metric, "kl": row.kl}
    tests = {"p": row.p, "p_holm": row.p_holm, "outcome": row.outcome}
    rows = [{**head, "part": "difference", "value": e.value, "low": e.low, "high": e.high, "seeds": e.seeds, **tests}]
    rows += [
        {**head, "part": "difference of a seed", "seed": seed, "value": value} for seed, value in row.per_seed.items()
    ]
    return pd.DataFrame(rows)
