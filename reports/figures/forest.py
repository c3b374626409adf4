"""Forest plots of final results with intervals: win rates, effects against the baseline."""

from __future__ import annotations

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.figures.marks import estimate_frame, row, rows_axis, side, with_seeds
from reports.figures.style import INK, MUTED, SINGLE, Plot, arm_styles, new_figure
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.say import say
from reports.text.words import interval, name, signed

RATE = "eval/win_rate"
GOAL = 0.70
COMPARED = ("eval/gold", "eval/kl_per_sequence", "objective/scores", "objective/kl")
"""Metrics drawn beside the objective; the last two of imported trials, which have no evaluation."""
_COLUMNS = ["arm", "metric", "p", "p_holm", "outcome", "value", "low", "high", "seeds", "prompts", "seed"]


def win_rate(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw win rates against the reference."""
    arms = [result for result in findings.arms if RATE in result.estimates]
    if not arms:
        return None
    styles = arm_styles(records.study)
    figure = new_figure(SINGLE, 1.0 + 0.4 * len(arms))
    axes = figure.subplots()
    for at, result in enumerate(arms):
        estimate = result.estimates[RATE]
        row(axes, at, estimate, result.per_seed.get(RATE, {}).values(), styles[result.arm])
        side(axes, at, f"{interval(estimate, RATE)}  {estimate.seeds}×{estimate.prompts}")
    for mark, dashes in ((0.5, "-"), (GOAL, (0, (3, 2)))):
        axes.axvline(mark, color=MUTED, lw=0.9, linestyle=dashes, zorder=1)
        axes.text(mark, -0.72, f"{100 * mark:.0f} %", ha="center", va="bottom", fontsize=7, color=MUTED)
    rows_axis(axes, [result.arm for result in arms])
    axes.set_xlim(0, 1)
    axes.set_xlabel("win rate against the reference [fraction]")
    caption = say("figures", "win_rate", records.study.foreign)
    alt = "; ".join(f"{result.arm} {interval(result.estimates[RATE], RATE)}" for result in arms)
    title = "Win rate against the reference"
    return Plot(figure, estimate_frame(arms, (RATE,)), title, caption, f"Forest plot of win rates: {alt}.")


def effects(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw paired differences to the baseline."""
    objective = records.study.objective.metric
    found = {key: findings.effects_on(key) for key in (objective, *COMPARED)}
    found = {key: own for key, own in found.items() if any(effect.estimate for effect in own)}
    if not found:
        return None
    styles = arm_styles(records.study)
    arms = [arm for arm in records.arms if arm != records.study.baseline]
    figure = new_figure(SINGLE, 0.3 + len(found) * (0.5 + 0.22 * len(arms)))
    data, estimates = [], []
    for axes, (key, own) in zip(figure.subplots(len(found), 1, squeeze=False).flat, found.items(), strict=True):
        for effect in own:
            at, estimate, head = arms.index(effect.arm), effect.estimate, {"arm": effect.arm, "metric": key}
            tests = {"p": effect.p, "p_holm": effect.p_holm, "outcome": effect.outcome}
            if estimate is None:
                side(axes, at, "not estimable")
                data.append({**head, **tests})
                continue
            row(axes, at, estimate, effect.per_seed.values(), styles[effect.arm])
            side(axes, at, signed(estimate, key))
            size = {"seeds": estimate.seeds, "prompts": estimate.prompts}
            data += with_seeds(head, estimate, effect.per_seed, **tests, **size)
            estimates.append(estimate)
        axes.axvline(0, color=INK, lw=0.8, zorder=1)
        rows_axis(axes, arms)
        axes.margins(x=0.08)
        axes.set_title(f"Δ {name(key)} [{METRICS[key].unit}]")
    by_prompt = any(estimate.prompts for estimate in estimates)
    caption = say("figures", "effects", records.baseline, by_prompt)
    shown = [effect for effect in findings.effects_on(objective) if effect.estimate]
    alt = "; ".join(f"{one.arm} {signed(one.estimate, objective)}" for one in shown if one.estimate)
    alt = f"Forest plots of differences to {records.study.baseline}: {alt}."
    return Plot(figure, pd.DataFrame(data, columns=_COLUMNS), "Effect against the baseline", caption, alt)
