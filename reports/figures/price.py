"""Gain of each arm over its cost: sampled tokens and floating-point operations of a trial."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from reports.figures.marks import estimate_frame, point
from reports.figures.style import DOUBLE, Plot, arm_styles, entries, legend, new_figure
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.say import say
from reports.text.words import name, number

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


def price(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw win rate against the tokens and the arithmetic of a trial, a point per arm whose costs are known."""
    judged = [result for result in findings.arms if METRIC in result.estimates]
    costs = {result.arm: {key: records.cost(result.arm, key) or 0.0 for key in COSTS} for result in judged}
    arms = [result for result in judged if all(costs[result.arm].values())]
    spans = [[costs[result.arm][key] for result in arms] for key in COSTS]
    if len(arms) < 2 or not any(max(span) > APART * min(span) for span in spans):
        return None
    styles = arm_styles(records.study)
    figure = new_figure(DOUBLE, 3.2)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (key, (unit, label)) in zip(panels, COSTS.items(), strict=True):
        for place, result in enumerate(arms):
            at = costs[result.arm][key] / unit * DODGE ** (place - (len(arms) - 1) / 2)
            seeds = [(at, value) for value in result.per_seed.get(METRIC, {}).values()]
            point(axes, at, result.estimates[METRIC], styles[result.arm], seeds)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"{label}, logarithmic scale")
    panels[0].set_ylabel(f"{name(METRIC)} [fraction]")
    legend(figure, entries(styles, [result.arm for result in arms]))
    caption = say("figures", "price", arms, [result.arm for result in judged if result not in arms])
    alt = "; ".join(
        f"{result.arm} {number(result.estimates[METRIC].value)} at"
        f" {costs[result.arm]['cost/generated_tokens'] / 1e6:.2f} million tokens and"
        f" {costs[result.arm]['cost/tflop']:.2f} TFLOP"
        for result in arms
    )
    data = estimate_frame(arms, (METRIC,)).join(pd.DataFrame.from_dict(costs, orient="index"), on="arm")
    title = "What each arm costs and wins"
    return Plot(figure, data, title, caption, f"Win rate over cost: {alt}.", wide=True)
