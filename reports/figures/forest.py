"""Forest plots of final results with intervals: win rates, effects against the baseline."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes

from pipeline.run.metrics import METRICS
from reports.figures.style import GRID, INK, MUTED, SINGLE, ArmStyle, Drawn, arm_styles, new_figure
from reports.findings.findings import ArmResult, Effect, Findings
from reports.records.load import StudyRecords
from reports.statistics.two_level import Estimate
from reports.text.words import interval, name, signed

GOAL = 0.70
DRAWN = ("eval/gold", "eval/kl_per_sequence")
"""Compared with the baseline beside the objective."""
ENDED = ("objective/scores", "objective/kl")
"""Their like of imported trials, which have no evaluation."""
INTERVAL_SENTENCE = "Bars: 95 %, hierarchical model over seeds and prompts"


def win_rate(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Forest plot of win rates against the reference."""
    arms = [result for result in findings.arms if "eval/win_rate" in result.estimates]
    if not arms:
        return None
    styles = arm_styles(records.study)
    figure = new_figure(SINGLE, 1.0 + 0.4 * len(arms))
    axes = figure.subplots()
    for row, result in enumerate(arms):
        estimate = result.estimates["eval/win_rate"]
        bar(axes, row, estimate, list(result.per_seed.get("eval/win_rate", {}).values()), styles[result.arm])
        side(axes, row, f"{interval(estimate, 'eval/win_rate')}  {estimate.seeds}×{estimate.prompts}")
    for at, text in ((0.5, "50 %"), (GOAL, "70 %")):
        axes.axvline(at, color=MUTED, lw=0.9, linestyle="-" if at == 0.5 else (0, (3, 2)), zorder=1)
        axes.text(at, -0.72, text, ha="center", va="bottom", fontsize=7, color=MUTED)
    rows_axis(axes, [result.arm for result in arms])
    axes.set_xlim(0, 1)
    axes.set_xlabel("win rate against the reference [fraction]")
    data = pd.concat([estimate_rows(result, ("eval/win_rate",)) for result in arms], ignore_index=True)
    what = (
        "Win rate of each arm against independent draws of the reference on held-out prompts, judged by the gold"
        " judge; ties count half."
        if records.study.imported is None
        else "Win rate of each arm, as the other program published it."
    )
    caption = (
        f"{what} Lines: 50 %, as good as the reference, and 70 %. Point: mean; small marks: seeds."
        f" {INTERVAL_SENTENCE}. Right: mean [interval], seeds × prompts."
    )
    alt = "Forest plot of win rates: " + "; ".join(
        f"{r.arm} {interval(r.estimates['eval/win_rate'], 'eval/win_rate')}" for r in arms
    )
    return Drawn(figure, data, "Win rate against the reference", caption, alt + ".")


def effects(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Forest plots of paired differences to the baseline."""
    objective = records.study.objective.metric
    keys = [
        key
        for key in dict.fromkeys((objective, *DRAWN, *ENDED))
        if any(effect.estimate for effect in findings.effects_on(key))
    ]
    if not keys:
        return None
    styles = arm_styles(records.study)
    arms = [arm for arm in records.arms if arm != records.study.baseline]
    figure = new_figure(SINGLE, 0.3 + len(keys) * (0.5 + 0.22 * len(arms)))
    grid = figure.subplots(len(keys), 1, squeeze=False)
    for axes, key in zip(grid.flat, keys, strict=True):
        for effect in findings.effects_on(key):
            row = arms.index(effect.arm)
            if effect.estimate is None:
                side(axes, row, "not estimable")
                continue
            bar(axes, row, effect.estimate, list(effect.per_seed.values()), styles[effect.arm])
            side(axes, row, signed(effect.estimate, key))
        axes.axvline(0, color=INK, lw=0.8, zorder=1)
        rows_axis(axes, arms)
        axes.margins(x=0.08)
        axes.set_title(f"Δ {name(key)} [{METRICS[key].unit}]", fontsize=8)
    data = pd.concat([_effect_rows(effect) for key in keys for effect in findings.effects_on(key)], ignore_index=True)
    drawn = [effect.estimate for key in keys for effect in findings.effects_on(key) if effect.estimate]
    by_prompt = any(estimate.prompts for estimate in drawn)
    bars = f"{INTERVAL_SENTENCE}, paired by both" if by_prompt else "Bars: 95 %, Student over seeds"
    caption = (
        f"Difference of each arm to {records.baseline}, paired by seed{' and held-out prompt' * by_prompt}. "
        f"Point: mean; small marks: seeds. {bars}. Right: mean [interval]."
    )
    alt = f"Forest plots of differences to {records.study.baseline}: " + "; ".join(
        f"{e.arm} {signed(e.estimate, objective)}" for e in findings.effects_on(objective) if e.estimate
    )
    return Drawn(figure, data, "Effect against the baseline", caption, alt + ".")


def bar(axes: Axes, row: int, estimate: Estimate, seeds: list[float], style: ArmStyle) -> None:
    """One row of a forest plot: the estimate with its interval, and the seeds under it."""
    axes.plot(
        seeds,
        [row + 0.24] * len(seeds),
        linestyle="",
        marker=style.marker,
        ms=2.8,
        mfc="none",
        mec=style.color,
        mew=0.8,
        zorder=3,
    )
    axes.errorbar(
        [estimate.value],
        [row],
        xerr=whiskers(estimate),
        fmt=style.marker,
        color=style.color,
        ms=6,
        mec="white",
        mew=0.7,
        elinewidth=1.8,
        zorder=4,
    )


def crossed(axes: Axes, result: ArmResult, across: str, up: str, style: ArmStyle) -> None:
    """An arm's estimate of one metric over that of another, with the intervals of both, and its seeds."""
    x, y = result.estimates[across], result.estimates[up]
    xs, ys = result.per_seed.get(across, {}), result.per_seed.get(up, {})
    seeds = [seed for seed in result.seeds if seed in xs and seed in ys]
    axes.plot(
        [xs[seed] for seed in seeds], [ys[seed] for seed in seeds], linestyle="", marker=style.marker, ms=3, mfc="none",
        mec=style.color, mew=0.8, alpha=0.9, zorder=3,
    )  # fmt: skip
    axes.errorbar(
        [x.value], [y.value], xerr=whiskers(x), yerr=whiskers(y), fmt=style.marker, color=style.color,
        ms=6.5, mec="white", mew=0.7, elinewidth=1.3, capsize=0, zorder=4,
    )  # fmt: skip


def whiskers(estimate: Estimate) -> list[list[float]] | None:
    """Lengths below and above the value, as matplotlib wants them; None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def side(axes: Axes, row: int, text: str) -> None:
    """Words to the right of a row."""
    axes.annotate(
        text,
        xy=(1.02, row),
        xycoords=("axes fraction", "data"),
        va="center",
        ha="left",
        fontsize=7,
        color=INK,
        annotation_clip=False,
    )


def rows_axis(axes: Axes, names: list[str]) -> None:
    """Name the rows of a forest plot, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for row in range(len(names) - 1):
        axes.axhline(row + 0.5, color=GRID, lw=0.5, zorder=0)


def estimate_rows(result: ArmResult, keys: tuple[str, ...]) -> pd.DataFrame:
    """The estimates of an arm and its seeds, a row each."""
    rows = []
    for key in keys:
        if key not in result.estimates:
            continue
        e = result.estimates[key]
        rows.append(
            {
                "arm": result.arm,
                "metric": key,
                "seed": math.nan,
                "value": e.value,
                "low": e.low,
                "high": e.high,
                "prompts": e.prompts,
            }
        )
        for seed, value in result.per_seed.get(key, {}).items():
            rows.append({"arm": result.arm, "metric": key, "seed": seed, "value": value})
    return pd.DataFrame(rows)


def _effect_rows(effect: Effect) -> pd.DataFrame:
    e = effect.estimate
    head = {
        "arm": effect.arm,
        "metric": effect.metric,
        "p": effect.p,
        "p_holm": effect.p_holm,
        "outcome": effect.outcome,
    }
    if e is None:
        return pd.DataFrame([head])
    rows = [{**head, "value": e.value, "low": e.low, "high": e.high, "seeds": e.seeds, "prompts": e.prompts}]
    rows += [
        {"arm": effect.arm, "metric": effect.metric, "seed": seed, "value": value}
        for seed, value in effect.per_seed.items()
    ]
    return pd.DataFrame(rows)
