"""Gain of each arm by the gold judge over its gain or loss by a further one."""

from __future__ import annotations

from reports.figures.marks import estimate_frame, pairs, point
from reports.figures.style import MUTED, SINGLE, Plot, arm_styles, entries, legend, new_figure
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.say import say
from reports.text.words import name, number

Y = "eval/gold"
FURTHER, REFERENCE = "eval/gold/", "eval/gold_reference/"


def tradeoff(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw gold reward against the score of each further judge, a point per arm and one for the reference."""
    keys = sorted({key for result in findings.arms for key in result.estimates if key.startswith(FURTHER)})
    arms = [result for result in findings.arms if {Y, *keys} <= result.estimates.keys()]
    if not keys or len(arms) < 2:
        return None
    styles, judged = arm_styles(records.study), records.reference_gold()
    figure = new_figure(SINGLE, 2.9 * len(keys))
    for axes, key in zip(figure.subplots(len(keys), 1, squeeze=False).flat, keys, strict=True):
        for result in arms:
            own = pairs(result, key, Y)
            point(axes, result.estimates[key], result.estimates[Y], styles[result.arm], own)
        if judged is not None:
            at = [result.estimates[key.replace(FURTHER, REFERENCE)].value for result in arms]
            axes.plot([sum(at) / len(at)], [judged[0]], marker="o", mfc="white", mec=MUTED, ms=5, zorder=5)
        axes.set_xlabel(f"{name(key)} [points of that judge]")
        axes.set_ylabel("gold reward [judge points]")
    legend(figure, entries(styles, [result.arm for result in arms]))
    caption = say("figures", "tradeoff", arms)
    alt = "; ".join(
        f"{result.arm} {number(result.estimates[Y].value)} at {name(keys[0])} {number(result.estimates[keys[0]].value)}"
        for result in arms
    )
    alt = f"Gold reward over the score of a further judge: {alt}."
    return Plot(figure, estimate_frame(arms, (Y, *keys)), "What two judges say of each arm", caption, alt)
