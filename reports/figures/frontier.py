"""The reward-KL frontier: what every arm gained for its drift, below the best that any policy could have gained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.figures.marks import INTERVAL_SENTENCE, estimate_frame, pairs, point, seed_counts
from reports.figures.style import MUTED, SINGLE, Drawn, arm_styles, entries, entry, legend, new_figure, square_root
from reports.findings.best_of_n import BestOfN, arms_with_another_reference, best_of_draws, choosing_arms
from reports.findings.bound import best_win_rate, reference_scores, tilted
from reports.findings.findings import ArmResult, Findings
from reports.records.load import StudyRecords
from reports.text.words import listed, number

X, GOLD, RATE = "eval/kl_per_sequence", "eval/gold", "eval/win_rate"
_CHOSEN: dict[str, Any] = {"color": MUTED, "marker": "s", "mfc": "white", "mec": MUTED, "ms": 3.5, "lw": 0.9}


def frontier(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Draw gold reward and win rate against exact KL per sequence, one point per arm, with the bounds."""
    arms = [result for result in findings.arms if X in result.estimates]
    if not arms:
        return None
    styles, published = arm_styles(records.study), records.study.imported is not None
    chosen = [one for one in best_of_draws(records) if one.n > 1 and not one.n & (one.n - 1)]
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
        data += _chosen(axes, chosen, key)
    lowest = bottom.get_ylim()[0]
    data += [] if published else [_win_rate_bound(bottom, farthest)]
    samples, bounds = _gold_bound(top, records)
    data += bounds
    square_root(bottom.xaxis, max(farthest, *(choice.kl for choice in chosen), 0.0))
    top.set_ylabel("gold reward [judge points]")
    bottom.set_ylabel("win rate [fraction]")
    bottom.set_ylim(min(0.45, lowest), 1.02)
    kind = "KL to the reference, as published" if published else "exact KL to the reference"
    bottom.set_xlabel(f"{kind} [nats per sequence], square-root scale")
    handles = entries(styles, [result.arm for result in arms])
    handles.append(entry("reference", MUTED, marker="o", mfc="white", mec=MUTED, ms=5))
    handles += [] if published else [entry("best possible", MUTED, "-", lw=1.4)]
    handles += [entry("best of n by the proxy", dashes="-", **_CHOSEN)] if chosen else []
    legend(figure, handles, columns=4)
    caption = _caption(arms, samples, published) + _choice_sentences(records, {one.arm for one in arms}, chosen)
    alt = "; ".join(
        f"{r.arm} KL {number(r.estimates[X].value)}, gold {number(gold.value if gold else None)}"
        for r in arms
        for gold in [r.estimates.get(GOLD)]
    )
    alt = f"Scatter of gold reward and of win rate against KL: {alt}."
    return Drawn(figure, pd.concat(data, ignore_index=True), "Reward-KL frontier", caption, alt)


def _caption(arms: list[ArmResult], samples: int, published: bool) -> str:
    prompts = sorted({result.estimates[X].prompts for result in arms})
    text = (
        "What each arm gained and how far it drifted. Large points: means; small points: single seeds"
        f" ({seed_counts({result.arm: len(result.seeds) for result in arms})};"
        f" {' to '.join(map(str, dict.fromkeys((prompts[0], prompts[-1]))))} prompts each). {INTERVAL_SENTENCE}."
    )
    if published:
        return f"{text} Rewards, win rates and KL are as the other program published them; no bound is known for them."
    text += " Solid grey: upper bound for any policy at that KL"
    if not samples:
        return text + "; none for the gold reward, as the scores of reference samples are not in the store."
    return text + f"; that on gold has a 95 % band (n = {samples:,} samples) and ends where too few have weight."


def _choice_sentences(records: StudyRecords, arms: set[str], choices: list[BestOfN]) -> str:
    """Return the part of the caption on best of n, and on arms with another reference; empty without any."""
    text = ""
    if choices:
        text += (
            f" Squares: the best of n = {', '.join(str(choice.n) for choice in choices)} answers of the reference by"
            f" the proxy (n = {choices[0].gold.seeds} × {choices[0].gold.prompts} references and held-out prompts);"
            " their KL is an upper bound, and a win rate needs answers that were not chosen among."
        )
    if several := [f"{arm} (n = {count})" for arm, count in choosing_arms(records).items() if arm in arms]:
        verb, whose = ("answers", "this arm") if len(several) == 1 else ("answer", "these arms")
        text += (
            f" {listed(several)} {verb} with the best of n samples by the proxy; the KL of {whose} is an upper bound."
        )
    if apart := [arm for arm in arms_with_another_reference(records) if arm in arms]:
        text += (
            f" {listed(apart)}: KL and win rate are against a reference in few bits; the bounds, made with that of"
            f" {records.study.baseline}, need not hold there."
        )
    return text


def _chosen(axes: Axes, choices: list[BestOfN], key: str) -> list[pd.DataFrame]:
    """Draw best of n by the proxy; return its rows, with intervals."""
    found = [(one, value) for one in choices if (value := one.gold if key == GOLD else one.win_rate) is not None]
    axes.plot([one.kl for one, _ in found], [value.value for _, value in found], zorder=2, **_CHOSEN)
    rows = [
        {"part": f"best of {one.n} by the proxy", "metric": key, "kl": one.kl, "value": value.value}
        | {"low": value.low, "high": value.high, "seeds": value.seeds}
        for one, value in found
    ]
    return [pd.DataFrame(rows)] if rows else []


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
