"""The reward-KL frontier: each arm's gain for its drift, below the highest gain that any policy could have."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.run.metrics import METRICS
from reports.figures.marks import estimate_frame, pairs, point
from reports.figures.style import MUTED, SINGLE, Plot, arm_styles, entries, entry, legend, new_figure, square_root
from reports.findings.bound import arms_with_another_reference, best_win_rate, choosing_arms, reference_scores, tilted
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.say import say
from reports.text.words import number

X, GOLD, RATE = "eval/kl_per_sequence", "eval/gold", "eval/win_rate"


def frontier(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw gold reward and win rate against exact KL per sequence, one point per arm, with the bounds."""
    arms = [result for result in findings.arms if X in result.estimates]
    if not arms:
        return None
    styles, published = arm_styles(records.study), records.study.foreign
    judged = records.reference_gold()
    farthest = max(max(*result.per_seed[X].values(), result.estimates[X].high or 0.0) for result in arms)
    figure = new_figure(SINGLE, 4.3)
    top, bottom = figure.subplots(2, 1, sharex=True)
    data = [estimate_frame(arms, (X, GOLD, RATE))]
    for axes, key, at in ((top, GOLD, judged[0] if judged else None), (bottom, RATE, 0.5)):
        for result in arms:
            if key in result.estimates:
                own = pairs(result, X, key)
                point(axes, result.estimates[X], result.estimates[key], styles[result.arm], own)
        if at is not None:
            axes.plot([0], [at], marker="o", mfc="white", mec=MUTED, ms=5, clip_on=False, zorder=5)
    lowest = bottom.get_ylim()[0]
    data += [] if published else [_win_rate_bound(bottom, farthest)]
    samples, bounds = _gold_bound(top, records)
    data += bounds
    square_root(bottom.xaxis, farthest)
    top.set_ylabel(f"gold reward [{METRICS[GOLD].unit}]")
    bottom.set_ylabel("win rate [fraction]")
    bottom.set_ylim(min(0.45, lowest), 1.02)
    kind = "KL to the reference, as published" if published else "exact KL to the reference"
    bottom.set_xlabel(f"{kind} [nats per sequence], square-root scale")
    handles = entries(styles, [result.arm for result in arms])
    handles.append(entry("reference", MUTED, marker="o", mfc="white", mec=MUTED, ms=5))
    handles += [] if published else [entry("best possible", MUTED, "-", lw=1.4)]
    legend(figure, handles, columns=4)
    shown = [one.arm for one in arms]
    several = [f"{arm} (n = {count})" for arm, count in choosing_arms(records).items() if arm in shown]
    apart = [arm for arm in arms_with_another_reference(records) if arm in shown]
    caption = say("figures", "frontier", arms, samples, published, several, apart, records.study.baseline)
    alt = "; ".join(
        f"{r.arm} KL {number(r.estimates[X].value)}, gold {number(gold.value if gold else None)}"
        for r in arms
        for gold in [r.estimates.get(GOLD)]
    )
    alt = f"Scatter of gold reward and of win rate against KL: {alt}."
    return Plot(figure, pd.concat(data, ignore_index=True), "Reward-KL frontier", caption, alt)


def _win_rate_bound(axes: Axes, farthest: float) -> pd.DataFrame:
    kl, rate = best_win_rate(farthest * 1.3)
    axes.plot(kl, rate, color=MUTED, lw=1.4, zorder=1)
    return pd.DataFrame({"part": "best possible", "metric": RATE, "kl": kl, "value": rate})


def _gold_bound(axes: Axes, records: StudyRecords) -> tuple[int, list[pd.DataFrame]]:
    """Draw the best gold reward at each KL, by the reference's samples, and return their number; nothing where their
    scores are not known or do not vary."""
    gold, prompts = reference_scores(records) or (np.zeros(0), np.zeros(0, dtype=np.intp))
    if len(gold) < 2 or not gold.std() > 0:
        return len(gold), []
    path = tilted(gold, prompts)
    axes.plot(path.kl, path.value, color=MUTED, lw=1.4, zorder=1)
    axes.fill_between(path.kl, path.low, path.high, color=MUTED, alpha=0.15, lw=0, zorder=1)
    columns = {"kl": path.kl, "value": path.value, "low": path.low, "high": path.high}
    frame = pd.DataFrame({"part": "best possible", "metric": GOLD, **columns, "effective_samples": path.effective})
    return len(gold), [frame]
