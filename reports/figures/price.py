"""Gain of each arm over its cost: sampled tokens and floating-point operations of a trial."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from reports.figures.marks import point, with_seeds
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
    paid = _paid(records)
    arms = [result for result in judged if result.arm in paid]
    costs = {result.arm: paid[result.arm] for result in arms}
    spans = [[own[key] for own in costs.values()] for key in COSTS]
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
    caption = say("figures", "price", arms, [result.arm for result in judged if result.arm not in paid])
    alt = "; ".join(
        f"{result.arm} {number(result.estimates[METRIC].value)} at"
        f" {costs[result.arm]['cost/generated_tokens'] / 1e6:.2f} million tokens and"
        f" {costs[result.arm]['cost/tflop']:.2f} TFLOP"
        for result in arms
    )
    data = [
        one
        for result in arms
        for one in with_seeds(
            {"arm": result.arm, "metric": METRIC, **costs[result.arm]},
            result.estimates[METRIC],
            result.per_seed.get(METRIC, {}),
        )
    ]
    title = "What each arm costs and wins"
    return Plot(figure, pd.DataFrame(data), title, caption, f"Win rate over cost: {alt}.", wide=True)


def _paid(records: StudyRecords) -> dict[str, dict[str, float]]:
    """Return the mean costs of the arms that have all of them above 0."""
    if not set(COSTS) <= set(records.trials.columns):
        return {}
    means = records.trials.groupby("arm")[list(COSTS)].mean()
    kept = means[(means > 0).all(axis=1)].astype(float)
    return {str(arm): {key: float(row[key]) for key in COSTS} for arm, row in kept.iterrows()}
