"""Figures with gradient steps on the x-axis: KL, entropy, and small multiples of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pipeline.run.metrics import METRICS
from reports.figures.marks import EITHER_END, telling
from reports.figures.style import ALARM, DOUBLE, SINGLE, ArmStyle, Plot, arm_styles, entries, entry, legend, new_figure
from reports.findings.findings import Findings
from reports.findings.trajectories import aligned
from reports.records.load import StudyRecords
from reports.statistics.series import Aligned
from reports.text.say import say
from studies.definition.falsifier import EXACT_KL, Falsifier

ORDERS_APART = 12.0
PANELS = {
    "objective/scores": "proxy reward", "objective/gold": "gold reward", "objective/length": "response length",
    "policy/pg_clipfrac": "clip fraction", "value/vf_loss": "value loss",
    "value/explained_variance": "explained variance",
    "pairs/chosen_log_ratio": "chosen, log-ratio", "pairs/rejected_log_ratio": "rejected, log-ratio",
    "objective/kl_coef": "KL coefficient β", "objective/ent_coef": "entropy coefficient", "policy/lr": "learning rate",
}  # fmt: skip
"""Series of the figure of training, with their titles; the parts of a composite reward follow."""
KL_LABELS = {
    EXACT_KL: "KL to the reference [nats per token]",
    "objective/kl_per_token": "KL to the reference [nats per token]",
    "objective/kl": "KL to the reference [nats per sequence]",
    "objective/kl_k3_per_token": "KL to the reference, k3 [nats per token]",
}
"""Estimators in the order of preference; the last two of imported records, which can lack lengths."""


@dataclass(frozen=True)
class ArmCurve:
    """One metric of one arm over steps."""

    arm: str
    seeds: int
    mean: pd.DataFrame
    """step, mean, low, high: over all seeds, as long as all of them were still running."""
    tails: tuple[pd.DataFrame, ...]
    """step, value of each seed after the first one had ended."""
    ends: tuple[tuple[float, float, str], ...]
    """step, value, status where a seed ended before its time."""

    @property
    def last(self) -> float:
        """The mean over the last values of all seeds."""
        lasts = [float(tail["value"].iloc[-1]) for tail in self.tails]
        return float(np.mean(lasts)) if lasts else float(self.mean["mean"].iloc[-1])

    def tidy(self, key: str) -> pd.DataFrame:
        """Return all that is drawn, in one frame."""
        tails = [tail.rename(columns={"value": "mean"}).assign(part="single seed", seeds=1) for tail in self.tails]
        frame = pd.concat([self.mean.assign(part="all seeds", seeds=self.seeds), *tails], ignore_index=True)
        columns = ["arm", "part", "seed", "step", "mean", "low", "high", "seeds", "metric"]
        return frame.assign(arm=self.arm, metric=key).reindex(columns=columns)


def kl(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw the KL by the estimator that the claims are about, else by the first one that was recorded."""
    recorded = [key for key in KL_LABELS if key in records.curves.columns]
    claimed = [falsifier.metric for falsifier in records.study.falsifiers]
    ranked = sorted(recorded, key=lambda key: not (key in claimed and KL_LABELS[key] == KL_LABELS[EXACT_KL]))
    if not ranked:
        return None
    return _single(records, findings, ranked[0], "KL to the reference", KL_LABELS[ranked[0]], spread=True)


def entropy(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw the exact entropy of the policy."""
    return _single(records, findings, "policy/entropy", "Policy entropy", "entropy [nats per token]", spread=False)


def training(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw small multiples of the series of training."""
    parts = sorted(str(column) for column in records.curves.columns if str(column).startswith("reward/"))
    shown = [(key, curves) for key in (*PANELS, *parts) if (curves := arm_curves(records, key))]
    if not shown:
        return None
    styles, drawn = arm_styles(records.study), telling(records, findings)
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(DOUBLE, 1.55 * rows + 0.4)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axes, (key, curves) in zip(grid.flat, shown, strict=False):
        for curve in curves:
            if curve.arm in drawn:
                _draw(axes, curve, styles[curve.arm], 1.1)
        _falsifiers(axes, records, key)
        axes.set_title(_title(key))
        unit = METRICS[key].unit.removesuffix(" samples").removeprefix("1")  # of a reward, std of reference
        axes.set_ylabel(unit, fontsize=7)
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
        axes.yaxis.get_offset_text().set(fontsize=6.5, x=1.0, ha="right")  # the title stands on the left
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
        axes.tick_params(labelsize=6.5)
    for place in range(len(shown), rows * columns):
        grid.flat[place].set_axis_off()
        grid.flat[place - columns].tick_params(labelbottom=True)
    figure.supxlabel("gradient steps", fontsize=8)
    legend(figure, entries(styles, drawn, lines=True))
    caption = _caption(records, "Training", [one for _, own in shown for one in own if one.arm in drawn])
    alt = f"Small multiples over gradient steps, one line per arm: {', '.join(_title(key) for key, _ in shown)}."
    data = pd.concat([curve.tidy(key) for key, curves in shown for curve in curves], ignore_index=True)
    return Plot(figure, data, "Training curves", caption, alt, wide=True)


def arm_curves(records: StudyRecords, key: str) -> list[ArmCurve]:
    """Return mean and range over seeds of a metric for every arm that recorded it, on a common grid per arm."""
    status = records.trials.set_index(["arm", "seed"])["status"]
    found = [(arm, *aligned(records, key, arm)) for arm in records.arms]
    return [
        _curve(arm, seeds, series, [str(status[arm, seed]) for seed in seeds]) for arm, seeds, series in found if seeds
    ]


def _curve(arm: str, seeds: Sequence[int], series: Aligned, statuses: Sequence[str]) -> ArmCurve:
    """Seeds whose last records lie within 2 % of the steps of each other have ended together: their grids differ, not
    their fate."""
    whole = np.flatnonzero(series.whole)
    last, slack = (int(whole[-1]), 0.02 * float(series.grid[-1])) if len(whole) else (-1, -1.0)
    values = series.values[:, whole]
    columns = {"step": series.grid[whole], "mean": values.mean(0), "low": values.min(0), "high": values.max(0)}
    tails, ends = [], []
    for seed, row, end, status in zip(seeds, series.values, series.last, statuses, strict=True):
        if end >= 0 and (last < 0 or series.grid[end] - series.grid[last] > slack):
            after = np.arange(max(last, 0), end + 1)
            after = after[np.isfinite(row[after])]
            tails.append(pd.DataFrame({"step": series.grid[after], "value": row[after], "seed": seed}))
        if status != "complete" and end >= 0:
            ends.append((float(series.grid[end]), float(row[end]), status))
    return ArmCurve(arm, len(seeds), pd.DataFrame(columns), tuple(tails), tuple(ends))


def _single(
    records: StudyRecords, findings: Findings, key: str, title: str, label: str, *, spread: bool
) -> Plot | None:
    curves = arm_curves(records, key)
    if not curves:
        return None
    styles, drawn = arm_styles(records.study), telling(records, findings)
    figure = new_figure(SINGLE, 3.1)
    axes = figure.subplots()
    for curve in curves:
        if curve.arm in drawn:
            _draw(axes, curve, styles[curve.arm], 1.5)
    lasts = [abs(curve.last) for curve in curves]
    compressed = spread and max(lasts) > ORDERS_APART * max(min(lasts), 1e-9)
    if compressed:
        axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_ylim(bottom=min(0.0, *(float(curve.mean["low"].min()) for curve in curves if len(curve.mean))))
    axes.set_xlabel("gradient steps")
    axes.set_ylabel(label)
    axes.set_xlim(0, float(records.trials["planned_steps"].max()))
    claims = _falsifiers(axes, records, key)
    bounds = [entry(f"{one.name} {one.op} {one.threshold:g}", ALARM, (0, (2, 2)), lw=0.9) for one in claims]
    legend(figure, [*entries(styles, [one.arm for one in curves if one.arm in drawn], lines=True), *bounds])
    of = [(one, [arm for arm in records.arms if one.applies_to(arm, records.study.baseline)]) for one in claims]
    caption = _caption(records, title, [one for one in curves if one.arm in drawn], compressed, of)
    at_end = ", ".join(f"{curve.arm} {curve.last:.3g}" for curve in curves)
    alt = f"Line chart of {label} over gradient steps, one line per arm; at the end: {at_end}."
    return Plot(figure, pd.concat([curve.tidy(key) for curve in curves], ignore_index=True), title, caption, alt)


def _draw(axes: Axes, curve: ArmCurve, style: ArmStyle, width: float) -> None:
    mean, every = curve.mean, max(1, len(curve.mean) // 8)
    axes.fill_between(mean["step"], mean["low"], mean["high"], color=style.color, alpha=0.16, lw=0)
    axes.plot(
        mean["step"], mean["mean"], color=style.color, linestyle=style.dashes, lw=width, marker=style.marker,
        markevery=(every // 2, every), ms=3.2 * width / 1.5, mec="white", mew=0.4,
    )  # fmt: skip
    for tail in curve.tails:
        axes.plot(tail["step"], tail["value"], color=style.color, lw=0.7, alpha=0.75)
    for step, value, status in curve.ends:
        mark = "x" if status == "diverged" else "|"
        axes.plot([step], [value], mark, color=style.color, ms=4.2 * width, mew=width, zorder=6)


def _falsifiers(axes: Axes, records: StudyRecords, key: str) -> list[Falsifier]:
    """Draw the thresholds of claims on a series; that of a difference to the baseline is on another scale."""
    claims = [one for one in records.study.falsifiers if one.metric == key and not one.relative_to]
    for claim in claims:
        low, high = axes.get_ylim()
        low, high = min(low, claim.threshold), max(high, claim.threshold * 1.1)
        edge, steps = high if claim.op.startswith(">") else low, [0, claim.horizon]
        axes.fill_between(steps, claim.threshold, edge, color=ALARM, alpha=0.06, lw=0, zorder=0)
        axes.plot(steps, [claim.threshold] * 2, color=ALARM, lw=0.9, linestyle=(0, (2, 2)), zorder=2)
        axes.plot([claim.horizon] * 2, [claim.threshold, edge], color=ALARM, lw=0.6, alpha=0.5, zorder=2)
        axes.set_ylim(low, high)
    return claims


def _caption(
    records: StudyRecords,
    title: str,
    curves: Sequence[ArmCurve],
    compressed: bool = False,
    claims: Sequence[tuple[Falsifier, list[str]]] = (),
) -> str:
    seeds, known = {curve.arm: curve.seeds for curve in curves}, len(records.arms)
    statuses = {status for curve in curves for _, _, status in curve.ends}
    arms = (list(seeds.values()), list(seeds), known, EITHER_END)
    tails = any(curve.tails for curve in curves)
    return say("figures", "curves", title, *arms, statuses, tails, compressed, claims, known)


def _title(key: str) -> str:
    return PANELS.get(key, f"part {key.removeprefix('reward/')}")
