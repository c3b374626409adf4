"""Proxy against gold along each arm's training, with drift on the x-axis, and where over-optimisation began."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from reports.figures.marks import EITHER_END, telling
from reports.figures.style import (
    ALARM,
    DOUBLE,
    INK,
    MUTED,
    SINGLE,
    Plot,
    arm_styles,
    entry,
    legend,
    new_figure,
    square_root,
)  # fmt: skip
from reports.findings.findings import Findings
from reports.findings.trajectories import ArmAlarm, kl_source
from reports.records.load import StudyRecords
from reports.statistics.series import DriftPath, mean_path
from reports.text.say import say
from reports.text.words import number

GOLD, PROXY = "objective/gold", "objective/scores"
_PROXY_DASHES, _ALARM_DASHES = (0, (3, 1.5)), (0, (2, 1.5))


def overoptimisation(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw proxy and gold over the drift of each arm's training, both in standard deviations of reference samples."""
    alarms = {alarm.arm: alarm for alarm in findings.alarms}
    known: dict[str, dict[int, DriftPath]] = {}
    for (arm, seed), path in findings.paths.items():
        known.setdefault(arm, {})[seed] = path
    judged = records.reference_gold()
    arms = [arm for arm in telling(records, findings) if arm in known]
    if not arms or judged is None:
        return None
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
    raised = [alarms[arm] for arm in known if arm in alarms]
    numbers = [len(known[arm]) for arm in arms]
    caption = say(
        "figures", "overoptimisation", numbers, arms, kl_source(records), centre, spread, raised, len(known), EITHER_END
    )
    alt = (
        f"Proxy and gold reward against the KL, a panel per arm. Over-optimisation: {say('figures', 'raised', raised)}."
    )
    return Plot(figure, pd.concat(data, ignore_index=True), "Proxy against gold", caption, alt, wide=columns == 3)


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
