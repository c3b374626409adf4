"""What each arm gains by the gold judge over what it keeps or loses by a further one."""

from __future__ import annotations

import pandas as pd

from reports.figures.curves import seed_counts
from reports.figures.forest import INTERVAL_SENTENCE, crossed, estimate_rows
from reports.figures.style import (
    MUTED,
    SINGLE,
    Drawn,
    arm_styles,
    legend_columns,
    legend_entry,
    new_figure,
)
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.words import name, number

Y = "eval/gold"
FURTHER, REFERENCE = "eval/gold/", "eval/gold_reference/"


def tradeoff(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Gold reward against the score of each further judge, a point per arm and one for the reference."""
    keys = sorted({key for result in findings.arms for key in result.estimates if key.startswith(FURTHER)})
    if not keys:
        return None
    arms = [result for result in findings.arms if Y in result.estimates and set(keys) <= result.estimates.keys()]
    if len(arms) < 2:
        return None
    styles = arm_styles(records.study)
    columns = legend_columns([result.arm for result in arms], SINGLE)
    figure = new_figure(SINGLE, 2.9 * len(keys) + 0.17 * -(-(len(arms) + 1) // columns))
    panels = figure.subplots(len(keys), 1, squeeze=False)[:, 0]
    judged = records.reference_gold()
    for axes, key in zip(panels, keys, strict=True):
        for result in arms:
            crossed(axes, result, key, Y, styles[result.arm])
        at = [result.estimates[key.replace(FURTHER, REFERENCE)].value for result in arms]
        if judged and at:
            axes.plot([sum(at) / len(at)], [judged[0]], marker="o", mfc="white", mec=MUTED, ms=5, zorder=5)
        axes.set_xlabel(f"{name(key)} [points of that judge]")
        axes.set_ylabel("gold reward [judge points]")
    handles = [legend_entry(result.arm, styles[result.arm]) for result in arms]
    for handle in handles:
        handle.set_linestyle("")
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=2.2)
    counts = {result.arm: result.estimates[Y].seeds for result in arms}
    caption = (
        "Gold reward over the score of a further judge, neither of which was trained on. Up and to the right is better"
        " by both. Large points: the arm; small points: its seeds; open grey circle: the reference."
        f" {INTERVAL_SENTENCE} ({seed_counts(counts)})."
    )
    alt = "Gold reward over the score of a further judge: " + "; ".join(
        f"{result.arm} {number(result.estimates[Y].value)} at {name(keys[0])} {number(result.estimates[keys[0]].value)}"
        for result in arms
    )
    data = pd.concat([estimate_rows(result, (Y, *keys)) for result in arms], ignore_index=True)
    return Drawn(figure, data, "What two judges say of each arm", caption, alt + ".")
