"""Proxy against gold along each arm's training, with drift on the x-axis, and where over-optimisation began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from reports.figures.marks import MOST, seed_counts
from reports.figures.style import (
    ALARM,
    DOUBLE,
    INK,
    MUTED,
    SINGLE,
    Drawn,
    arm_styles,
    entry,
    legend,
    new_figure,
    square_root,
)  # fmt: skip
from reports.findings.findings import Findings
from reports.findings.trajectories import ArmAlarm, kl_source
from reports.records.load import StudyRecords
from reports.statistics.drift import DriftPath, mean_path
from reports.text.words import counted, listed, number

GOLD, PROXY = "objective/gold", "objective/scores"
_PROXY_DASHES, _ALARM_DASHES = (0, (3, 1.5)), (0, (2, 1.5))


def overoptimisation(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Draw proxy and gold over the drift of each arm's training, both in standard deviations of reference samples."""
    alarms = {alarm.arm: alarm for alarm in findings.alarms}
    known: dict[str, dict[int, DriftPath]] = {arm: {} for arm in records.arms}
    for (arm, seed), path in findings.paths.items():
        if {GOLD, PROXY} <= path.values.keys():
            known[arm][seed] = path
    known = {arm: paths for arm, paths in known.items() if paths}
    judged = records.reference_gold()
    if not known or judged is None:
        return None
    arms = panels(list(known), alarms, records.study.baseline)
    centre, spread = judged[0], judged[1] or 1.0
    styles = arm_styles(records.study)
    columns = 1 if len(arms) == 1 else 2 if len(arms) <= 6 else 3
    rows = -(-len(arms) // columns)
    figure = new_figure(DOUBLE if columns == 3 else SINGLE, 1.75 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    data = []
    for axes, arm in zip(grid.flat, arms, strict=False):
        for key, zero, unit, dashes in ((PROXY, 0.0, 1.0, _PROXY_DASHES), (GOLD, centre, spread, "-")):
            data.append(_lines(axes, known[arm], key, (zero, unit), styles[arm].color, dashes).assign(arm=arm))
        if arm in alarms:
            _alarm(axes, alarms[arm])
        axes.set_title(arm)
        square_root(axes.xaxis, max(float(path.kl.max()) for path in known[arm].values()), compact=True)
        axes.axhline(0, color=MUTED, lw=0.6, zorder=1)
    for axes in grid.flat[len(arms) :]:
        axes.set_axis_off()
    figure.supxlabel("KL to the reference [nats per sequence], square-root scale", fontsize=8)
    figure.supylabel("reward [std of reference samples]", fontsize=8)
    looks = (("proxy (trained on)", INK, _PROXY_DASHES), ("gold (judge)", INK, "-"), ("alarm", ALARM, _ALARM_DASHES))
    legend(figure, [entry(*look) for look in looks])
    raised = _in_words([alarms[arm] for arm in known if arm in alarms])
    caption = (
        "Proxy (dashed) and gold reward (solid) along each arm's training, over the KL at each step; thick: mean over"
        f" seeds at equal steps; thin: single seeds ({seed_counts({arm: len(known[arm]) for arm in arms})})."
        f" Running means over a tenth of the updates ({kl_source(records)}); lines turn back where the KL falls."
        " Policies during training are not finished, so this figure does not compare arms. Gold is"
        f" standardised by the reference's mean {number(centre)} and standard deviation {number(spread)} judge points,"
        " as the proxy is by construction. Where the lines part, the proxy is being over-optimised. Alarm: the KL at"
        " which gold turned down beyond noise while the proxy still rose, mean over seeds with its 95 % interval:"
        f" {raised}. The x-axes differ."
    )
    if len(arms) < len(known):
        caption += f" {len(arms)} of {len(known)} arms are drawn, those with an alarm and the baseline first."
    alt = (
        "One panel per arm: proxy reward and gold reward against the KL to the reference. Alarm of over-optimisation:"
        f" {raised}."
    )
    return Drawn(figure, pd.concat(data, ignore_index=True), "Proxy against gold", caption, alt, wide=columns == 3)


def panels(arms: Sequence[str], alarms: Mapping[str, ArmAlarm], baseline: str) -> list[str]:
    """Choose at most `MOST` arms in the order of the study: those with an alarm and the baseline before others."""
    ranked = sorted(arms, key=lambda arm: (arm not in alarms or alarms[arm].kl is None, arm != baseline))
    chosen = set(ranked[:MOST])
    return [arm for arm in arms if arm in chosen]


def _lines(
    axes: Axes, paths: dict[int, DriftPath], key: str, scale: tuple[float, float], color: str, dashes: Any
) -> pd.DataFrame:
    """Draw thin lines of seeds and a thick one of their mean at equal steps; return them, standardised by `scale`."""

    def frame(path: DriftPath, **part: Any) -> pd.DataFrame:
        value = (path.values[key] - scale[0]) / scale[1]
        return pd.DataFrame({"metric": key, **part, "step": path.steps, "kl": path.kl, "value": value})

    data = [frame(path, part="seed", seed=seed) for seed, path in paths.items()]
    lines = [one[["kl", "value"]].to_numpy() for one in data]
    alpha = 0.5 if len(lines) > 1 else 1.0
    axes.add_collection(LineCollection(lines, colors=color, linestyles=[dashes], linewidths=0.6, alpha=alpha))
    axes.autoscale_view()
    mean = mean_path(list(paths.values())) if len(paths) > 1 else None
    if mean is not None:
        data.append(frame(mean, part="mean"))
        axes.plot(mean.kl, data[-1]["value"], color=color, linestyle=dashes, lw=1.6)
    return pd.concat(data, ignore_index=True)


def _alarm(axes: Axes, alarm: ArmAlarm) -> None:
    if (kl := alarm.kl) is None:
        return
    if kl.low is not None and kl.high is not None:
        axes.axvspan(kl.low, kl.high, color=ALARM, alpha=0.08, lw=0, zorder=0)
    axes.axvline(kl.value, color=ALARM, lw=1.0, linestyle=_ALARM_DASHES, zorder=2)
    axes.annotate(
        f"{number(kl.value)} nats", xy=(kl.value, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0),
        textcoords="offset points", fontsize=7, color=ALARM, va="bottom", ha="left",
    )  # fmt: skip


def _in_words(alarms: Sequence[ArmAlarm]) -> str:
    parts = []
    for one in alarms:
        if one.kl is not None:
            steps = sorted(round(alarm.step) for alarm in one.alarms.values())
            when = f"step {steps[0]:,}" if len(set(steps)) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
            trials = f"{len(one.alarms)} of {counted(one.trials, 'trial')}"
            parts.append(f"{one.arm} at {number(one.kl.value)} nats ({when}) in {trials}")
    if quiet := [one for one in alarms if one.kl is None]:
        arms = listed([one.arm for one in quiet]) if len(quiet) <= 4 else counted(len(quiet), "other arm")
        parts.append(f"none in the {counted(sum(one.trials for one in quiet), 'trial')} of {arms}")
    return "; ".join(parts) or "not looked for"
