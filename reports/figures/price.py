"""What each arm wins over what it costs: sampled tokens and floating-point operations of a trial."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from reports.figures.curves import seed_counts
from reports.figures.forest import INTERVAL_SENTENCE, whiskers
from reports.figures.style import DOUBLE, ArmStyle, Drawn, arm_styles, legend_columns, legend_entry, new_figure
from reports.findings.findings import ArmResult, Findings
from reports.records.load import StudyRecords
from reports.text.words import listed, name, number

METRIC = "eval/win_rate"
COSTS = {
    "cost/generated_tokens": (1e6, "sampled tokens [millions per trial]"),
    "cost/tflop": (1.0, "arithmetic [TFLOP per trial]"),
}
"""Columns of trials: divisor and axis label."""
APART = 1.25
"""Ratio of the dearest to the cheapest arm from which a cost is worth a picture."""

DODGE = 1.015
"""Ratio by which neighbours of equal cost are moved apart."""


def price(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Win rate against the tokens and the arithmetic of a trial, a point per arm."""
    paid = {arm: cost for arm, cost in _paid(records).items() if METRIC in findings.arm(arm).estimates}
    shown = [arm for arm in records.arms if arm in paid]
    if len(shown) < 2 or not any(_differs([paid[arm][key] for arm in shown]) for key in COSTS):
        return None
    styles = arm_styles(records.study)
    columns = legend_columns(shown, DOUBLE)
    figure = new_figure(DOUBLE, 3.2 + 0.17 * -(-len(shown) // columns))
    panels = figure.subplots(1, len(COSTS), sharey=True)
    results = [findings.arm(arm) for arm in shown]
    for axes, (key, (unit, label)) in zip(panels, COSTS.items(), strict=True):
        for place, result in enumerate(results):
            at = paid[result.arm][key] / unit * DODGE ** (place - (len(results) - 1) / 2)
            _point(axes, at, result, styles[result.arm])
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"{label}, logarithmic scale")
    panels[0].set_ylabel(f"{name(METRIC)} [fraction]")
    handles = [legend_entry(arm, styles[arm]) for arm in shown]
    for handle in handles:
        handle.set_linestyle("")
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=2.2)
    counts = {result.arm: result.estimates[METRIC].seeds for result in results}
    caption = (
        "Win rate over cost, the mean over trials; arms are moved apart by 1.5 % of their cost. Large points: the arm;"
        f" small points: its seeds. {INTERVAL_SENTENCE} ({seed_counts(counts)}). Tokens and arithmetic include the"
        " samples of the reference that an arm needs before training."
    )
    if free := [arm for arm in records.arms if METRIC in findings.arm(arm).estimates and arm not in paid]:
        caption += f" Without a point, since no cost of training is known: {listed(free)}."
    alt = "Win rate over cost: " + "; ".join(
        f"{result.arm} {number(result.estimates[METRIC].value)} at"
        f" {paid[result.arm]['cost/generated_tokens'] / 1e6:.2f} million tokens and"
        f" {paid[result.arm]['cost/tflop']:.2f} TFLOP"
        for result in results
    )
    data = pd.concat([_rows(result, paid[result.arm]) for result in results], ignore_index=True)
    return Drawn(figure, data, "What each arm costs and wins", caption, alt + ".", wide=True)


def _paid(records: StudyRecords) -> dict[str, dict[str, float]]:
    """Mean costs of the arms that have all of them above 0."""
    if not set(COSTS) <= set(records.trials.columns):
        return {}
    means = records.trials.groupby("arm")[list(COSTS)].mean()
    costs = {str(arm): {key: float(row[key]) for key in COSTS} for arm, row in means.iterrows()}
    return {arm: cost for arm, cost in costs.items() if all(value > 0 for value in cost.values())}


def _differs(costs: list[float]) -> bool:
    return max(costs) > APART * min(costs)


def _point(axes: Axes, cost: float, result: ArmResult, style: ArmStyle) -> None:
    estimate, seeds = result.estimates[METRIC], list(result.per_seed.get(METRIC, {}).values())
    axes.plot(
        [cost] * len(seeds), seeds, linestyle="", marker=style.marker, ms=3, mfc="none", mec=style.color, mew=0.8,
        alpha=0.9, zorder=3,
    )  # fmt: skip
    axes.errorbar(
        [cost], [estimate.value], yerr=whiskers(estimate), fmt=style.marker, color=style.color, ms=6.5, mec="white",
        mew=0.7, elinewidth=1.3, zorder=4,
    )  # fmt: skip


def _rows(result: ArmResult, paid: dict[str, float]) -> pd.DataFrame:
    estimate = result.estimates[METRIC]
    head = {"arm": result.arm, "metric": METRIC, **paid}
    rows = [{**head, "value": estimate.value, "low": estimate.low, "high": estimate.high}]
    rows += [{**head, "seed": seed, "value": value} for seed, value in result.per_seed.get(METRIC, {}).items()]
    return pd.DataFrame(rows)
