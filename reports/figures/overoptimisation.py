"""Proxy against gold along each arm's training, with drift on the x-axis, and where over-optimisation began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from reports.figures.curves import seed_counts
from reports.figures.emphasis import MOST
from reports.figures.style import (
    ALARM,
    DOUBLE,
    INK,
    MUTED,
    SINGLE,
    Drawn,
    arm_styles,
    new_figure,
    square_root,
)
from reports.findings.findings import Findings
from reports.findings.trajectories import ArmAlarm, kl_source
from reports.records.load import StudyRecords
from reports.statistics.drift import DriftPath, mean_path
from reports.text.words import counted, listed, number

GOLD, PROXY = "objective/gold", "objective/scores"
PROXY_DASHES = (0, (3, 1.5))


def overoptimisation(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Proxy and gold over the drift of each arm's training, both in standard deviations of reference samples."""
    alarms = {alarm.arm: alarm for alarm in findings.alarms}
    known = {arm: paths for arm in records.arms if (paths := _of_arm(findings, arm, GOLD, PROXY))}
    judged = records.reference_gold()
    if not known or judged is None:
        return None
    arms = {arm: known[arm] for arm in _panels(list(known), alarms, records.study.baseline)}
    centre, spread = judged
    spread = spread or 1.0
    styles = arm_styles(records.study)
    columns = 1 if len(arms) == 1 else 2 if len(arms) <= 6 else 3
    rows = -(-len(arms) // columns)
    figure = new_figure(DOUBLE if columns == 3 else SINGLE, 1.75 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    data = []
    for axes, (arm, paths) in zip(grid.flat, arms.items(), strict=False):
        for key, dashes in ((PROXY, PROXY_DASHES), (GOLD, "-")):
            scale = (0.0, 1.0) if key == PROXY else (centre, spread)
            data.append(_lines(axes, paths, key, scale, styles[arm].color, dashes).assign(arm=arm))
        _alarm(axes, alarms.get(arm))
        axes.set_title(arm, fontsize=8)
        square_root(axes.xaxis, max(float(path.kl.max()) for path in paths.values()), compact=True)
        axes.axhline(0, color=MUTED, lw=0.6, zorder=1)
    for axes in list(grid.flat)[len(arms) :]:
        axes.set_axis_off()
    figure.supxlabel("KL to the reference [nats per sequence], square-root scale", fontsize=8)
    figure.supylabel("reward [std of reference samples]", fontsize=8)
    figure.legend(handles=_legend(), loc="outside upper left", ncols=3)
    said = _said([alarms[arm] for arm in known if arm in alarms])
    caption = (
        "Proxy (dashed) and gold reward (solid) along each arm's training, over the KL at each step; thick: mean over"
        f" seeds at equal steps; thin: single seeds ({seed_counts({arm: len(paths) for arm, paths in arms.items()})})."
        f" Running means over a tenth of the updates ({kl_source(records)}); lines turn back where the KL falls."
        " Policies during training are not finished, so this figure does not compare arms. Gold is"
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


def _panels(arms: list[str], alarms: dict[str, ArmAlarm], baseline: str) -> list[str]:
    """At most `MOST` arms in the order of the study: those with an alarm and the baseline before others."""
    ranked = sorted(arms, key=lambda arm: (arm not in alarms or alarms[arm].kl is None, arm != baseline))
    chosen = set(ranked[:MOST])
    return [arm for arm in arms if arm in chosen]


def _of_arm(findings: Findings, arm: str, *keys: str) -> dict[int, DriftPath]:
    """Seed -> training, of the seeds of an arm that recorded all these metrics."""
    return {
        seed: path for (name, seed), path in findings.paths.items() if name == arm and set(keys) <= set(path.values)
    }


def _lines(
    axes: Axes, paths: dict[int, DriftPath], key: str, scale: tuple[float, float], color: str, dashes: Any
) -> pd.DataFrame:
    """Thin lines of seeds and a thick one of their mean at equal steps; the numbers, standardised by `scale`."""
    lines = {seed: (path.kl, (path.values[key] - scale[0]) / scale[1]) for seed, path in paths.items()}
    thin = LineCollection(
        [np.column_stack(line) for line in lines.values()],
        colors=color,
        linestyles=[dashes],
        linewidths=0.6,
        alpha=0.5 if len(lines) > 1 else 1.0,
    )
    axes.add_collection(thin)
    axes.autoscale_view()
    data = [
        pd.DataFrame({"metric": key, "part": "seed", "seed": seed, "step": paths[seed].steps, "kl": kl, "value": value})
        for seed, (kl, value) in lines.items()
    ]
    mean = mean_path(list(paths.values())) if len(paths) > 1 else None
    if mean is not None:
        value = (mean.values[key] - scale[0]) / scale[1]
        axes.plot(mean.kl, value, color=color, linestyle=dashes, lw=1.6)
        data.append(pd.DataFrame({"metric": key, "part": "mean", "step": mean.steps, "kl": mean.kl, "value": value}))
    return pd.concat(data, ignore_index=True)


def _alarm(axes: Axes, alarm: ArmAlarm | None) -> None:
    if alarm is None or alarm.kl is None:
        return
    if alarm.kl.low is not None and alarm.kl.high is not None:
        axes.axvspan(alarm.kl.low, alarm.kl.high, color=ALARM, alpha=0.08, lw=0, zorder=0)
    axes.axvline(alarm.kl.value, color=ALARM, lw=1.0, linestyle=(0, (2, 1.5)), zorder=2)
    axes.annotate(
        f"{number(alarm.kl.value)} nats", xy=(alarm.kl.value, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0),
        textcoords="offset points", fontsize=7, color=ALARM, va="bottom", ha="left",
    )  # fmt: skip


def _said(alarms: Sequence[ArmAlarm]) -> str:
    parts = []
    for arm_alarm in alarms:
        if arm_alarm.kl is not None:
            steps = sorted(round(alarm.step) for alarm in arm_alarm.alarms.values())
            when = f"step {steps[0]:,}" if len(set(steps)) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
            parts.append(
                f"{arm_alarm.arm} at {number(arm_alarm.kl.value)} nats ({when}) in {len(arm_alarm.alarms)} of"
                f" {counted(arm_alarm.trials, 'trial')}"
            )
    quiet = [arm_alarm for arm_alarm in alarms if arm_alarm.kl is None]
    if quiet:
        trials = counted(sum(silent.trials for silent in quiet), "trial")
        parts.append(
            f"none in the {trials} of"
            f" {listed([silent.arm for silent in quiet]) if len(quiet) <= 4 else counted(len(quiet), 'other arm')}"
        )
    return "; ".join(parts) or "not looked for"


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=INK, linestyle=PROXY_DASHES, label="proxy (trained on)"),
        Line2D([], [], color=INK, linestyle="-", label="gold (judge)"),
        Line2D([], [], color=ALARM, linestyle=(0, (2, 1.5)), lw=1.0, label="alarm"),
    ]
