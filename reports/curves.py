"""Figures with gradient steps or drift on the x-axis: KL, entropy, training, over-optimisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline.metrics import METRICS
from reports.estimates import Findings
from reports.load import StudyRecords
from reports.style import (
    ALARM,
    DOUBLE,
    INK,
    MUTED,
    SINGLE,
    ArmStyle,
    Drawn,
    arm_styles,
    label_ends,
    legend_columns,
    new_figure,
    square_root,
)
from studies.schema import Falsifier

BINS = 256
DIRECT_LABELS = 8
ORDERS_APART = 12.0
TRAINING = (
    "objective/scores", "objective/gold", "objective/length", "policy/pg_clipfrac",
    "value/vf_loss", "value/explained_variance", "objective/kl_coef", "policy/lr",
)  # fmt: skip
SHORT = {
    "objective/scores": "proxy reward", "objective/gold": "gold reward", "objective/length": "response length",
    "policy/pg_clipfrac": "clip fraction", "value/vf_loss": "value loss", "value/explained_variance": "explained variance",
    "objective/kl_coef": "KL coefficient β", "policy/lr": "learning rate",
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
    ends: tuple[tuple[int, float, str], ...]
    """step, value, status where a seed ended before its time."""


def kl(records: StudyRecords, findings: Findings) -> Drawn | None:
    """KL per token over gradient steps."""
    return _single(records, "objective/kl_per_token", "KL to the reference", "KL to the reference [nats per token]", spread=True)


def entropy(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Exact policy entropy over gradient steps."""
    return _single(records, "policy/entropy", "Policy entropy", "entropy [nats per token]", spread=False)


def training(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Small multiples of what was watched during training."""
    shown = [(key, curves) for key in TRAINING if (curves := arm_curves(records, key))]
    if not shown:
        return None
    styles = arm_styles(records.study)
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(DOUBLE, 1.55 * rows + 0.55)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axes, (key, curves) in zip(grid.flat, shown, strict=False):
        for curve in curves:
            _draw(axes, curve, styles[curve.arm], width=1.1)
        _falsifiers(axes, records, key)
        axes.set_title(SHORT[key], fontsize=8)
        axes.set_ylabel(_short_unit(key), fontsize=7)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
        axes.tick_params(labelsize=6.5)
        _scientific(axes, key)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_axis_off()
    figure.supxlabel("gradient steps", fontsize=8)
    figure.legend(handles=handles(styles), loc="outside upper left", ncols=legend_columns(styles, DOUBLE), handlelength=2.6)
    data = pd.concat([_tidy(curve).assign(metric=key) for key, curves in shown for curve in curves], ignore_index=True)
    caption = "Training over gradient steps. " + _band_sentence(records, [curve for _, curves in shown for curve in curves])
    alt = "Small multiples over gradient steps, one line per arm: " + ", ".join(SHORT[key] for key, _ in shown) + "."
    return Drawn(figure, data, "Training curves", caption, alt, wide=True)


def overoptimisation(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Proxy against gold over the drift of each arm's trajectory, both in standard deviations of reference samples."""
    paths = {arm: path for arm in records.arms if len(path := _trajectory(records, arm))}
    if not paths or records.prompts.empty:
        return None
    reference = records.prompts.drop_duplicates("prompt_id")["reference_gold"].astype(float)
    centre, spread = float(reference.mean()), float(reference.std(ddof=0)) or 1.0
    styles = arm_styles(records.study)
    columns = 1 if len(paths) == 1 else 2 if len(paths) <= 6 else 3
    rows = -(-len(paths) // columns)
    figure = new_figure(DOUBLE if columns == 3 else SINGLE, 1.75 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    peaks = []
    for axes, (arm, path) in zip(grid.flat, paths.items(), strict=False):
        path["gold_std"] = (path["gold"] - centre) / spread
        color = styles[arm].color
        axes.plot(path["kl"], path["proxy"], linestyle=(0, (3, 1.5)), color=color, lw=1.3)
        axes.plot(path["kl"], path["gold_std"], linestyle="-", color=color, lw=1.6)
        at = int(path["gold_std"].to_numpy(dtype=float).argmax())
        peak = {key: float(path[key].iloc[at]) for key in ("step", "kl", "gold_std")}
        peaks.append(f"{arm} at step {peak['step']:.0f}")
        axes.plot([peak["kl"]], [peak["gold_std"]], marker="*", ms=9, color="white", mec=color, mew=1.2, zorder=5)
        near_end = peak["kl"] > 0.5 * float(path["kl"].max())
        axes.annotate(
            f"step {peak['step']:.0f}",
            (peak["kl"], peak["gold_std"]),
            xytext=(4 if near_end else 0, -13),
            textcoords="offset points",
            ha="right" if near_end else "center",
            fontsize=7,
            color=color,
        )
        axes.set_title(arm, fontsize=8)
        square_root(axes.xaxis, float(path["kl"].max()), compact=True)
        axes.axhline(0, color=MUTED, lw=0.6, zorder=1)
    for axes in list(grid.flat)[len(paths) :]:
        axes.set_axis_off()
    figure.supxlabel("KL to the reference [nats per sequence], square-root scale", fontsize=8)
    figure.supylabel("reward [std of reference samples]", fontsize=8)
    legend = [
        Line2D([], [], color=INK, linestyle=(0, (3, 1.5)), label="proxy (trained on)"),
        Line2D([], [], color=INK, linestyle="-", label="gold (judge)"),
        Line2D([], [], color=INK, marker="*", ms=8, mfc="white", linestyle="", label="highest gold"),
    ]
    figure.legend(handles=legend, loc="outside upper left", ncols=3)
    data = pd.concat([path.assign(arm=arm) for arm, path in paths.items()], ignore_index=True)
    caption = (
        "Proxy (dashed) and gold reward (solid) against drift along each arm's training. Means over the seeds still running "
        f"({seed_counts({arm: int(path['n'].max()) for arm, path in paths.items()})}), running mean of {_SMOOTH} updates. Gold is "
        f"standardised by the reference's mean {centre:.3g} and standard deviation {spread:.3g} judge points, as the proxy is by "
        "construction. Where the lines part, the proxy is being over-optimised. "
        f"The star marks the highest gold: {'; '.join(peaks)}. The x-axes differ."
    )
    alt = "One panel per arm: proxy reward and gold reward against the KL to the reference, with the step of highest gold reward."
    return Drawn(figure, data, "Proxy against gold", caption, alt, wide=columns == 3)


def arm_curves(records: StudyRecords, key: str) -> list[ArmCurve]:
    """Mean and range over seeds of one metric for every arm that recorded it; at most `BINS` points, each the mean of its steps.

    A bin holds whole updates: within one the clip fraction rises from epoch to epoch, and a bin that cut
    it would draw that saw-tooth as if it were noise.
    """
    if key not in records.curves.columns:
        return []
    frame = records.curves[["arm", "seed", "step", key]].dropna().rename(columns={key: "value"})
    if frame.empty:
        return []
    if frame["step"].nunique() > BINS:
        update = _update_length(records)
        width = -(-int(frame["step"].max()) // (BINS * update)) * update
        frame["step"] = (frame["step"].astype(int) // width) * width + width // 2
        frame = frame.groupby(["arm", "seed", "step"])["value"].mean().reset_index()
    status = records.trials.set_index(["arm", "seed"])["status"]
    return [_curve(arm, chosen, status) for arm in records.arms if not (chosen := frame[frame["arm"] == arm]).empty]


def _update_length(records: StudyRecords) -> int:
    """Gradient steps between two rollouts; 1 where that cannot be seen."""
    if "objective/kl" not in records.curves.columns:
        return 1
    steps = np.sort(records.curves.loc[records.curves["objective/kl"].notna(), "step"].astype(int).unique())
    return int(np.diff(steps).min()) if len(steps) > 1 else 1


def _curve(arm: str, frame: pd.DataFrame, status: pd.Series[str]) -> ArmCurve:
    wide = frame.pivot(index="step", columns="seed", values="value").sort_index()
    whole = wide.dropna()
    last = whole.index.max() if len(whole) else -1
    mean = pd.DataFrame({"step": whole.index, "mean": whole.mean(axis=1), "low": whole.min(axis=1), "high": whole.max(axis=1)})
    tails, ends = [], []
    for seed in wide.columns:
        line = wide[seed].dropna()
        after = line[line.index >= last]
        if len(after) > 1:
            tails.append(pd.DataFrame({"step": after.index, "value": after.to_numpy(), "seed": seed}))
        how = str(status[arm, seed])
        if how in _END_MARKS:
            ends.append((int(line.index[-1]), float(line.iloc[-1]), how))
    return ArmCurve(arm, len(wide.columns), mean.reset_index(drop=True), tuple(tails), tuple(ends))


def _single(records: StudyRecords, key: str, title: str, label: str, *, spread: bool) -> Drawn | None:
    curves = arm_curves(records, key)
    if not curves:
        return None
    styles = arm_styles(records.study)
    columns = legend_columns(styles, SINGLE)
    legend_rows = -(-len(styles) // columns) if len(curves) > DIRECT_LABELS else 0
    figure = new_figure(SINGLE, 3.1 + 0.17 * legend_rows)
    axes = figure.subplots()
    for curve in curves:
        _draw(axes, curve, styles[curve.arm])
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
        figure.legend(handles=handles(styles), loc="outside lower left", ncols=columns, handlelength=2.6)
    data = pd.concat([_tidy(curve) for curve in curves], ignore_index=True).assign(metric=key)
    caption = f"{title} over gradient steps. {_band_sentence(records, curves)}"
    if compressed:
        caption += " The y-axis is linear up to 0.01 and logarithmic above."
    for falsifier in drawn:
        caption += f" Shaded: where a record refutes the claim “{falsifier.claim}” ({falsifier.condition})."
    ends_text = ", ".join(f"{curve.arm} {_last(curve):.3g}" for curve in curves)
    return Drawn(figure, data, title, caption, f"Line chart of {label} over gradient steps, one line per arm; at the end: {ends_text}.")


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
        axes.plot([step], [value], marker=_END_MARKS[status], color=style.color, ms=4.2 * width, mew=width, linestyle="", zorder=6)


def _falsifiers(axes: Axes, records: StudyRecords, key: str) -> list[Falsifier]:
    drawn = [falsifier for falsifier in records.study.falsifiers if falsifier.metric == key]
    for falsifier in drawn:
        low, high = axes.get_ylim()
        low, high = min(low, falsifier.threshold), max(high, falsifier.threshold * 1.1)
        edge = high if falsifier.op.startswith(">") else low
        steps = [0, falsifier.before_step]
        axes.fill_between(steps, falsifier.threshold, edge, color=ALARM, alpha=0.06, lw=0, zorder=0)
        axes.plot(steps, [falsifier.threshold] * 2, color=ALARM, lw=0.9, linestyle=(0, (2, 2)), zorder=2)
        axes.plot([falsifier.before_step] * 2, [falsifier.threshold, edge], color=ALARM, lw=0.6, alpha=0.5, zorder=2)
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
    tails = [tail.rename(columns={"value": "mean"}).assign(arm=curve.arm, part="single seed", seeds=1) for tail in curve.tails]
    frame = pd.concat([mean, *tails], ignore_index=True)
    columns = ["arm", "part", "seed", "step", "mean", "low", "high", "seeds"]
    return frame.reindex(columns=columns)


_SMOOTH = 5


def _trajectory(records: StudyRecords, arm: str) -> pd.DataFrame:
    """step, kl, proxy, gold, n: means over seeds at each update, smoothed over steps and ordered by step."""
    columns = {"objective/kl": "kl", "objective/scores": "proxy", "objective/gold": "gold"}
    if not set(columns) <= set(records.curves.columns):
        return pd.DataFrame()
    frame = records.curves[records.curves["arm"] == arm][["step", *columns]].dropna().rename(columns=columns)
    if frame.empty:
        return pd.DataFrame()
    grouped = frame.groupby("step")
    means = pd.DataFrame({key: grouped[key].mean() for key in columns.values()})
    path = means.rolling(_SMOOTH, center=True, min_periods=1).mean().assign(n=grouped["kl"].count())
    path["kl"] = path["kl"].clip(lower=0.0)
    return path.reset_index()


def _orders_apart(curves: list[ArmCurve]) -> bool:
    tops = [abs(_last(curve)) for curve in curves]
    return max(tops) > ORDERS_APART * max(min(tops), 1e-9)


def _last(curve: ArmCurve) -> float:
    if len(curve.mean) and not curve.tails:
        return float(curve.mean["mean"].iloc[-1])
    lasts = [float(tail["value"].iloc[-1]) for tail in curve.tails]
    return float(np.mean(lasts)) if lasts else float(curve.mean["mean"].iloc[-1])


def handles(styles: dict[str, ArmStyle]) -> list[Line2D]:
    """Legend entries of all arms."""
    return [
        Line2D([], [], color=style.color, linestyle=style.dashes, marker=style.marker, ms=4, mec="white", mew=0.4, label=arm)
        for arm, style in styles.items()
    ]


def _short_unit(key: str) -> str:
    unit = METRICS[key].unit
    return {"std of reference samples": "std of reference", "1": ""}.get(unit, unit)


def _scientific(axes: Axes, key: str) -> None:
    if key == "policy/lr":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        axes.yaxis.get_offset_text().set_fontsize(6.5)
