"""Arms at equal drift: where each ends, beside the curve through the ends of the baseline's method."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pipeline.run.metrics import METRICS
from reports.figures.curves import seed_counts
from reports.figures.emphasis import MOST
from reports.figures.forest import bar, rows_axis, side, whiskers
from reports.figures.style import (
    DOUBLE,
    INK,
    ArmStyle,
    Drawn,
    arm_styles,
    legend_columns,
    legend_entry,
    new_figure,
    square_root,
)
from reports.findings.best_of_n import choosing_arms
from reports.findings.findings import ArmResult, Findings
from reports.findings.matched_kl import ENDED_KL, KL, MatchedKL, only_ends, seed_lines
from reports.records.load import StudyRecords
from reports.statistics.two_level import Array
from reports.text.words import listed, name, number, signed

TFLOP = "cost/tflop"


def matched(records: StudyRecords, findings: Findings) -> Drawn | None:
    """The ends of all arms over KL, and the differences to the baseline's method at equal KL."""
    compared = [row for row in findings.matched if not row.reason]
    if not compared:
        return None
    metric = compared[0].metric
    rows = [row for row in compared if row.metric == metric]
    rows = sorted(rows, key=lambda row: -abs(row.difference.value) if row.difference else 0.0)[:MOST]
    rows.sort(key=lambda row: records.arms.index(row.arm))
    left_out = len({row.arm for row in compared if row.metric == metric}) - len(rows)
    styles = arm_styles(records.study)
    shown = [arm for arm in records.arms if arm in {*rows[0].arms, *(row.arm for row in rows)}]
    figure = new_figure(DOUBLE, max(3.3, 1.5 + 0.42 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    data = []
    data += [_line(left, seed, rows[0], *line) for seed, line in seed_lines(records, metric).items()]
    x = ENDED_KL if only_ends(records) else KL
    ends = [result for arm in shown if {x, metric} <= (result := findings.arm(arm)).estimates.keys()]
    data += [_end(left, result, x, metric, styles[result.arm]) for result in ends]
    square_root(left.xaxis, max(max(result.per_seed[x].values()) for result in ends))
    left.set_xlabel("KL to the reference at the end\n[nats per sequence], square-root scale")
    left.set_ylabel(f"{name(metric)} [{METRICS[metric].unit}]")
    left.set_title("at the end of training", fontsize=8)
    for at, row in enumerate(rows):
        if row.difference is not None:
            bar(right, at, row.difference, list(row.per_seed.values()), styles[row.arm])
            side(right, at, signed(row.difference, metric))
    right.axvline(0, color=INK, lw=0.8, zorder=1)
    right.xaxis.set_major_locator(MaxNLocator(4))
    paid = arithmetic(records)
    rows_axis(right, [_label(row, paid) for row in rows])
    right.set_xlabel(f"Δ {name(metric)} to {rows[0].method}\n[{METRICS[metric].unit}]")
    right.set_title("at equal drift", fontsize=8)
    handles = [legend_entry(arm, styles[arm]) for arm in shown]
    for handle in handles:
        handle.set_linestyle("")
    handles.append(Line2D([], [], color=INK, lw=0.7, label=f"{rows[0].method}, seed by seed"))
    columns = legend_columns([str(handle.get_label()) for handle in handles], DOUBLE)
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=2.2)
    data += [_rows(row) for row in rows]
    counts, chosen = {row.arm: row.difference.seeds for row in rows if row.difference}, choosing_arms(records)
    caption = (
        f"Left: {name(metric)} over KL, both at the end of training; small marks: seeds; lines: {rows[0].method} on"
        f" each seed, interpolated in √KL between the ends of {listed(list(rows[0].arms))}. Right: difference of each"
        " seed of the other arms to the line of that seed at the same KL. Point: mean; small marks: seeds; bars: 95 %"
        f" ({seed_counts(counts)})."
    )
    if any(row.arm in paid for row in rows):
        caption += f" Cost: floating-point operations of a trial, as a multiple of {records.study.baseline}'s."
    if several := [f"{arm} (n = {chosen[arm]})" for arm in shown if arm in chosen]:
        caption += (
            f" The answer of {listed(several)} is the best of n samples by the proxy: its KL is an upper bound, and the"
            " sampling is no part of the cost."
        )
    if left_out:
        caption += f" The {len(rows)} arms that differ most are drawn; the table has {left_out} more."
    alt = f"{name(metric)} over KL at the end of training, and a forest plot of differences at equal KL: " + "; ".join(
        f"{row.arm} at {number(row.kl.value)} nats {signed(row.difference, metric)}" for row in rows if row.difference
    )
    title = f"{name(metric)[0].upper()}{name(metric)[1:]} at equal drift"
    return Drawn(figure, pd.concat(data, ignore_index=True), title, caption, alt + ".", wide=True)


def arithmetic(records: StudyRecords) -> dict[str, float]:
    """Floating-point operations of a trial of each arm, as a multiple of the baseline's; where they are known."""
    if TFLOP not in records.trials.columns:
        return {}
    means = records.trials.groupby("arm")[TFLOP].mean()
    base = float(means.get(str(records.study.baseline), float("nan")))
    return {str(arm): float(value) / base for arm, value in means.items() if base > 0 and value == value}


def _label(row: MatchedKL, paid: dict[str, float]) -> str:
    cost = f", {paid[row.arm]:.2f} × cost" if paid.get(row.arm) else ", no training" if row.arm in paid else ""
    return f"{row.arm}\nat {number(row.kl.value)} nats{cost}"


def _line(axes: Axes, seed: int, row: MatchedKL, kl: Array, value: Array) -> pd.DataFrame:
    axes.plot(kl, value, color=INK, lw=0.7, alpha=0.5, zorder=2)
    head = {"part": "interpolated", "arm": row.method, "metric": row.metric, "seed": seed}
    return pd.DataFrame({**head, "kl": kl, "value": value})


def _end(axes: Axes, result: ArmResult, x: str, metric: str, style: ArmStyle) -> pd.DataFrame:
    kl, value = result.estimates[x], result.estimates[metric]
    axes.errorbar(
        [kl.value], [value.value], xerr=whiskers(kl), yerr=whiskers(value), fmt=style.marker, color=style.color,
        ms=6, mec="white", mew=0.7, elinewidth=1.2, zorder=4,
    )  # fmt: skip
    seeds = [seed for seed in result.seeds if all(seed in result.per_seed.get(key, {}) for key in (x, metric))]
    xs, ys = ([result.per_seed[key][seed] for seed in seeds] for key in (x, metric))
    axes.plot(xs, ys, style.marker, color=style.color, ms=2.5, alpha=0.6, mew=0, zorder=3)
    head = {"part": "end", "arm": result.arm, "metric": metric}
    rows = [{**head, "kl": kl.value, "value": value.value, "low": value.low, "high": value.high}]
    rows += [
        {**head, "part": "end of a seed", "seed": seed, "kl": result.per_seed[x][seed],
         "value": result.per_seed[metric][seed]}
        for seed in seeds
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _rows(row: MatchedKL) -> pd.DataFrame:
    e = row.difference
    if e is None:
        return pd.DataFrame()
    head = {"arm": row.arm, "metric": row.metric, "kl": row.kl.value}
    tests = {"p": row.p, "p_holm": row.p_holm, "outcome": row.outcome}
    rows = [{**head, "part": "difference", "value": e.value, "low": e.low, "high": e.high, "seeds": e.seeds, **tests}]
    rows += [
        {**head, "part": "difference of a seed", "seed": seed, "value": value} for seed, value in row.per_seed.items()
    ]
    return pd.DataFrame(rows)
