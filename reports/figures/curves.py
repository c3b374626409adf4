"""Figures with gradient steps on the x-axis: KL, entropy, and what else was watched during training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline.run.metrics import METRICS
from reports.figures.emphasis import Emphasis, background, emphasis
from reports.figures.style import (
    ALARM,
    DOUBLE,
    SINGLE,
    ArmStyle,
    Drawn,
    arm_styles,
    label_ends,
    legend_columns,
    new_figure,
)
from reports.findings.findings import Findings
from reports.findings.trajectories import aligned
from reports.records.load import StudyRecords
from reports.statistics.series import Aligned
from reports.text.words import listed
from studies.definition.falsifier import EXACT_KL, Falsifier

DIRECT_LABELS = 8
ORDERS_APART = 12.0
TRAINING = (
    "objective/scores", "objective/gold", "objective/length", "policy/pg_clipfrac",
    "value/vf_loss", "value/explained_variance", "pairs/chosen_log_ratio", "pairs/rejected_log_ratio",
    "objective/kl_coef", "objective/ent_coef", "policy/lr",
)  # fmt: skip
SHORT = {
    "objective/scores": "proxy reward", "objective/gold": "gold reward", "objective/length": "response length",
    "policy/pg_clipfrac": "clip fraction", "value/vf_loss": "value loss",
    "value/explained_variance": "explained variance",
    "pairs/chosen_log_ratio": "chosen, log-ratio", "pairs/rejected_log_ratio": "rejected, log-ratio",
    "reward/disagreement": "reward models apart",
    "objective/kl_coef": "KL coefficient β", "objective/ent_coef": "entropy coefficient", "policy/lr": "learning rate",
}  # fmt: skip
_END_MARKS = {"diverged": "x", "budget": "|", "pruned": "|", "failed": "|"}


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


def kl(records: StudyRecords, findings: Findings) -> Drawn | None:
    """KL per token over gradient steps; per sequence where imported records tell no length, or the estimator that they
    have."""
    labels = {
        "objective/kl": "KL to the reference [nats per sequence]",
        "objective/kl_k3_per_token": "KL to the reference, k3 [nats per token]",
    }
    key = _kl_per_token(records) or next((key for key in labels if key in records.curves.columns), "objective/kl")
    label = labels.get(key, "KL to the reference [nats per token]")
    return _single(records, findings, key, "KL to the reference", label, spread=True)


def _kl_per_token(records: StudyRecords) -> str | None:
    """The estimator that the claims speak of, else the exact one where it was recorded."""
    claimed = [falsifier.metric for falsifier in records.study.falsifiers]
    ranked = (EXACT_KL, "objective/kl_per_token")
    recorded = [key for key in ranked if key in records.curves.columns]
    return next((key for key in recorded if key in claimed), recorded[0] if recorded else None)


def entropy(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Exact policy entropy over gradient steps."""
    return _single(records, findings, "policy/entropy", "Policy entropy", "entropy [nats per token]", spread=False)


def training(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Small multiples of what was watched during training."""
    parts = sorted(str(column) for column in records.curves.columns if str(column).startswith("reward/"))
    shown = [(key, curves) for key in (*TRAINING, *parts) if (curves := arm_curves(records, key))]
    if not shown:
        return None
    styles, shining = arm_styles(records.study), emphasis(records, findings)
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(DOUBLE, 1.55 * rows + 0.55)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axes, (key, curves) in zip(grid.flat, shown, strict=False):
        _draw_all(axes, curves, styles, shining, width=1.1)
        _falsifiers(axes, records, key)
        axes.set_title(short(key), fontsize=8)
        axes.set_ylabel(_short_unit(key, axes), fontsize=7)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
        axes.tick_params(labelsize=6.5)
    for place in range(len(shown), rows * columns):
        grid.flat[place].set_axis_off()
        grid.flat[place - columns].tick_params(labelbottom=True)
    figure.supxlabel("gradient steps", fontsize=8)
    figure.legend(
        handles=shining.handles(styles),
        loc="outside upper left",
        ncols=legend_columns(shining.arms, DOUBLE),
        handlelength=2.6,
    )
    data = pd.concat([_tidy(curve).assign(metric=key) for key, curves in shown for curve in curves], ignore_index=True)
    caption = (
        "Training over gradient steps. "
        + _band_sentence(records, [curve for _, curves in shown for curve in curves])
        + shining.sentence
    )
    alt = "Small multiples over gradient steps, one line per arm: " + ", ".join(short(key) for key, _ in shown) + "."
    return Drawn(figure, data, "Training curves", caption, alt, wide=True)


def short(key: str) -> str:
    """Title of a panel."""
    return SHORT.get(key) or f"part {key.removeprefix('reward/')}"


def arm_curves(records: StudyRecords, key: str) -> list[ArmCurve]:
    """Mean and range over seeds of one metric for every arm that recorded it, on a common grid of steps per arm."""
    status = records.trials.set_index(["arm", "seed"])["status"]
    curves = []
    for arm in records.arms:
        seeds, series = aligned(records, key, arm)
        if seeds:
            curves.append(_curve(arm, seeds, series, {seed: str(status[arm, seed]) for seed in seeds}))
    return curves


def _curve(arm: str, seeds: list[int], series: Aligned, status: dict[int, str]) -> ArmCurve:
    """Seeds whose last records lie within 2 % of the steps of each other have ended together: their grids differ, not
    their fate."""
    whole = np.flatnonzero(series.whole)
    last, slack = (int(whole[-1]), 0.02 * float(series.grid[-1])) if len(whole) else (-1, -1.0)
    values = series.values[:, whole]
    mean = pd.DataFrame(
        {"step": series.grid[whole], "mean": values.mean(0), "low": values.min(0), "high": values.max(0)}
    )
    tails, ends = [], []
    for seed, row, end in zip(seeds, series.values, series.last, strict=True):
        if end >= 0 and (last < 0 or series.grid[end] - series.grid[last] > slack):
            after = np.arange(max(last, 0), end + 1)
            after = after[np.isfinite(row[after])]
            tails.append(pd.DataFrame({"step": series.grid[after], "value": row[after], "seed": seed}))
        if status[seed] in _END_MARKS and end >= 0:
            ends.append((float(series.grid[end]), float(row[end]), status[seed]))
    return ArmCurve(arm, len(seeds), mean, tuple(tails), tuple(ends))


def _single(
    records: StudyRecords, findings: Findings, key: str, title: str, label: str, *, spread: bool
) -> Drawn | None:
    curves = arm_curves(records, key)
    if not curves:
        return None
    styles, shining = arm_styles(records.study), emphasis(records, findings)
    columns = legend_columns(shining.arms, SINGLE)
    legend_rows = -(-(len(shining.arms) + 1) // columns) if len(curves) > DIRECT_LABELS else 0
    figure = new_figure(SINGLE, 3.1 + 0.17 * legend_rows)
    axes = figure.subplots()
    _draw_all(axes, curves, styles, shining)
    compressed = spread and _orders_apart(curves)
    if compressed:
        axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylim(bottom=min(0.0, *(float(curve.mean["low"].min()) for curve in curves if len(curve.mean))))
    axes.set_xlabel("gradient steps")
    axes.set_ylabel(label)
    axes.set_xlim(0, float(records.trials["planned_steps"].max()))
    drawn = _falsifiers(axes, records, key)
    if len(curves) <= DIRECT_LABELS:
        ends = [(_last(curve), curve.arm, styles[curve.arm].color) for curve in curves]
        label_ends(axes, ends + [(f.threshold, f"{f.name} {f.op} {f.threshold:g}", ALARM) for f in drawn])
    else:
        figure.legend(handles=shining.handles(styles), loc="outside lower left", ncols=columns, handlelength=2.6)
    data = pd.concat([_tidy(curve) for curve in curves], ignore_index=True).assign(metric=key)
    caption = f"{title} over gradient steps. {_band_sentence(records, curves)}{shining.sentence}"
    if compressed:
        caption += " The y-axis is linear up to 0.01 and logarithmic above."
    for falsifier in drawn:
        arms = [arm for arm in records.arms if falsifier.applies_to(arm, records.study.baseline)]
        of = f", for {listed(arms)} alone" if len(arms) < len(records.arms) else ""
        caption += f" Shaded: where a record refutes the claim “{falsifier.claim}” ({falsifier.condition}{of})."
    ends_text = ", ".join(f"{curve.arm} {_last(curve):.3g}" for curve in curves)
    return Drawn(
        figure,
        data,
        title,
        caption,
        f"Line chart of {label} over gradient steps, one line per arm; at the end: {ends_text}.",
    )


def _draw_all(
    axes: Axes, curves: list[ArmCurve], styles: dict[str, ArmStyle], shining: Emphasis, width: float = 1.5
) -> None:
    background(axes, [(curve.mean["step"], curve.mean["mean"]) for curve in curves if curve.arm not in shining])
    for curve in curves:
        if curve.arm in shining:
            _draw(axes, curve, styles[curve.arm], width)


def _draw(axes: Axes, curve: ArmCurve, style: ArmStyle, width: float = 1.5) -> None:
    mean = curve.mean
    if len(mean):
        every = max(1, len(mean) // 8)
        axes.fill_between(mean["step"], mean["low"], mean["high"], color=style.color, alpha=0.16, lw=0)
        axes.plot(
            mean["step"], mean["mean"], color=style.color, linestyle=style.dashes, lw=width,
            marker=style.marker, markevery=(every // 2, every), ms=3.2 * width / 1.5, mec="white", mew=0.4,
        )  # fmt: skip
    for tail in curve.tails:
        axes.plot(tail["step"], tail["value"], color=style.color, lw=0.7, alpha=0.75)
    for step, value, status in curve.ends:
        axes.plot(
            [step],
            [value],
            marker=_END_MARKS[status],
            color=style.color,
            ms=4.2 * width,
            mew=width,
            linestyle="",
            zorder=6,
        )


def _falsifiers(axes: Axes, records: StudyRecords, key: str) -> list[Falsifier]:
    """Draw the thresholds of claims on a series; that of a difference to the baseline is on another scale."""
    drawn = [one for one in records.study.falsifiers if one.metric == key and not one.relative_to]
    for falsifier in drawn:
        low, high = axes.get_ylim()
        low, high = min(low, falsifier.threshold), max(high, falsifier.threshold * 1.1)
        edge = high if falsifier.op.startswith(">") else low
        steps = [0, falsifier.horizon]
        axes.fill_between(steps, falsifier.threshold, edge, color=ALARM, alpha=0.06, lw=0, zorder=0)
        axes.plot(steps, [falsifier.threshold] * 2, color=ALARM, lw=0.9, linestyle=(0, (2, 2)), zorder=2)
        axes.plot([falsifier.horizon] * 2, [falsifier.threshold, edge], color=ALARM, lw=0.6, alpha=0.5, zorder=2)
        axes.set_ylim(low, high)
    return drawn


def _band_sentence(records: StudyRecords, curves: list[ArmCurve]) -> str:
    counts = {curve.arm: curve.seeds for curve in curves}
    text = f"Line: mean over seeds; band: lowest to highest seed ({seed_counts(counts)}), no interval."
    if any(curve.tails for curve in curves):
        text += " Thin lines: single seeds after another seed of the arm had ended."
    statuses = {status for curve in curves for _, _, status in curve.ends}
    if "diverged" in statuses:
        text += " ✕: a seed diverged."
    if statuses - {"diverged"}:
        text += " |: a seed ended early (budget or fault)."
    return text


def seed_counts(counts: dict[str, int]) -> str:
    """How many seeds each arm has, said once when they are equal."""
    if len(set(counts.values())) == 1:
        return f"n = {next(iter(counts.values()))} seeds per arm"
    return "seeds: " + ", ".join(f"{arm} {n}" for arm, n in counts.items())


def _tidy(curve: ArmCurve) -> pd.DataFrame:
    mean = curve.mean.assign(arm=curve.arm, part="all seeds", seeds=curve.seeds)
    tails = [
        tail.rename(columns={"value": "mean"}).assign(arm=curve.arm, part="single seed", seeds=1)
        for tail in curve.tails
    ]
    frame = pd.concat([mean, *tails], ignore_index=True)
    columns = ["arm", "part", "seed", "step", "mean", "low", "high", "seeds"]
    return frame.reindex(columns=columns)


def _orders_apart(curves: list[ArmCurve]) -> bool:
    tops = [abs(_last(curve)) for curve in curves]
    return max(tops) > ORDERS_APART * max(min(tops), 1e-9)


def _last(curve: ArmCurve) -> float:
    if len(curve.mean) and not curve.tails:
        return float(curve.mean["mean"].iloc[-1])
    lasts = [float(tail["value"].iloc[-1]) for tail in curve.tails]
    return float(np.mean(lasts)) if lasts else float(curve.mean["mean"].iloc[-1])


def _short_unit(key: str, axes: Axes) -> str:
    """The unit under the panel's title; powers of ten move into it."""
    if key == "policy/lr":
        exponent = math.floor(math.log10(max(axes.get_ylim()[1], 1e-300)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 10**exponent:g}"))
        return "10" + str(exponent).translate(_SUPERSCRIPT)
    unit = METRICS[key].unit
    return {"std of reference samples": "std of reference", "1": ""}.get(unit, unit)


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
