"""The reward-KL frontier: what every arm gained for its drift, below the best that any policy could have gained."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.figures.marks import INTERVAL_SENTENCE, estimate_frame, pairs, point, seed_counts, whiskers
from reports.figures.style import (
    INK,
    MUTED,
    SINGLE,
    ArmStyle,
    Drawn,
    arm_styles,
    entries,
    entry,
    legend,
    new_figure,
    square_root,
)
from reports.findings.best_of_n import BestOfN, arms_with_another_reference, best_of_draws, choosing_arms
from reports.findings.bound import Path, ReferenceScores, best_of, best_win_rate, reference_scores, tilted
from reports.findings.findings import ArmResult, Findings
from reports.records.load import StudyRecords
from reports.statistics.two_level import Array
from reports.text.words import listed, number
from studies.definition.design import Cell

X, GOLD, RATE = "eval/kl_per_sequence", "eval/gold", "eval/win_rate"
BEST_OF = (2, 4, 16, 64)
_BEST_OF_DASHES = (0, (1, 1.5))
_OPTIMUM_DASHES = (0, (6, 1.5, 1.2, 1.5))


def frontier(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Draw gold reward and win rate against exact KL per sequence, one point per arm, with the bounds."""
    arms = [result for result in findings.arms if X in result.estimates]
    if not arms:
        return None
    styles, published = arm_styles(records.study), records.study.imported is not None
    scores, chosen, judged = reference_scores(records), best_of_draws(records), records.reference_gold()
    farthest = max(max(*result.per_seed[X].values(), result.estimates[X].high or 0.0) for result in arms)
    figure = new_figure(SINGLE, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True)
    for axes, key, at in ((top, GOLD, judged[0] if judged else None), (bottom, RATE, 0.5)):
        for result in arms:
            if key in result.estimates:
                own = pairs(result, X, key)
                point(axes, result.estimates[X], result.estimates[key], styles[result.arm], own)
        if at is not None:
            axes.plot([0], [at], marker="o", mfc="white", mec=MUTED, ms=5, clip_on=False, zorder=5)
    data = [estimate_frame(arms, (X, GOLD, RATE))]
    data += [] if published else [_win_rate_bound(bottom, farthest)]
    data += _gold_bound(top, scores) if scores is not None else []
    optima, marked = _optima(top, scores, _fixed_betas(records, arms), styles) if scores is not None else ([], False)
    data += [*optima, *_chosen(top, chosen, GOLD), *_chosen(bottom, chosen, RATE)]
    square_root(bottom.xaxis, max(farthest, *(choice.kl for choice in chosen if _drawn(choice)), 0.0))
    top.set_ylabel("gold reward [judge points]")
    bottom.set_ylabel("win rate [fraction]")
    bottom.set_ylim(0, 1.02)
    kind = "KL to the reference, as published" if published else "exact KL to the reference"
    bottom.set_xlabel(f"{kind} [nats per sequence], square-root scale")
    handles = entries(styles, [result.arm for result in arms])
    handles.append(entry("reference", MUTED, marker="o", mfc="white", mec=MUTED, ms=5))
    if not published:
        handles.append(entry("best possible", MUTED, "-", lw=1.4))
        handles.append(entry("best of n", MUTED, _BEST_OF_DASHES, ".", lw=0.9, mec=MUTED))
        if scores is not None and len(scores.proxy):
            handles.append(entry("optimum of the proxy", MUTED, _OPTIMUM_DASHES, lw=1.0))
        if chosen:
            handles.append(entry("best of n by the proxy", INK, marker="s", mfc="white", mec=INK, ms=3.5))
    legend(figure, handles, columns=3)
    caption = _caption(arms, scores, marked, published) + _choice_sentences(records, {one.arm for one in arms}, chosen)
    alt = "; ".join(
        f"{r.arm} KL {number(r.estimates[X].value)}, gold {number(gold.value if gold else None)}"
        for r in arms
        for gold in [r.estimates.get(GOLD)]
    )
    alt = f"Scatter of gold reward and of win rate against KL: {alt}."
    return Drawn(figure, pd.concat(data, ignore_index=True), "Reward-KL frontier", caption, alt)


def _caption(arms: list[ArmResult], scores: ReferenceScores | None, marked: bool, published: bool) -> str:
    prompts = sorted({result.estimates[X].prompts for result in arms})
    text = (
        "What each arm gained and how far it drifted. Large points: means; small points: single seeds"
        f" ({seed_counts({result.arm: len(result.seeds) for result in arms})};"
        f" {' to '.join(map(str, dict.fromkeys((prompts[0], prompts[-1]))))} prompts each). {INTERVAL_SENTENCE}."
    )
    if published:
        return f"{text} Rewards, win rates and KL are as the other program published them; no bound is known for them."
    text += (
        " Solid grey: upper bound for any policy at that KL. Dotted: best of n reference samples by the judge"
        f" (dots: n = {', '.join(map(str, BEST_OF))})."
    )
    if scores is None:
        return text + " No bound on the gold reward: the scores of reference samples are not in the store."
    text += f" The bound on gold has a 95 % band (n = {len(scores.gold):,} samples) and ends where too few have weight."
    if len(scores.proxy):
        text += f" Dash-dotted: the exact optimum of the proxy for every β (n = {len(scores.proxy):,} samples)"
        text += "; thin lines lead from an arm to the optimum at its own β." if marked else "."
    return text


def _choice_sentences(records: StudyRecords, arms: set[str], choices: list[BestOfN]) -> str:
    """Return the part of the caption on best of n, and on arms with another reference; empty without any."""
    text = ""
    if shown := [choice for choice in choices if _drawn(choice)]:
        text += (
            f" Squares: the best of n = {', '.join(str(choice.n) for choice in shown)} answers of the reference by the"
            " proxy, averaged over all choices of n of a prompt's answers (n ="
            f" {shown[0].gold.seeds} × {shown[0].gold.prompts} references and held-out prompts);"
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
    """Draw best of n by the proxy; return the rows of all choices."""
    rows = []
    for choice in choices:
        if (value := choice.gold if key == GOLD else choice.win_rate) is None:
            continue
        row = {"part": f"best of {choice.n} by the {choice.by}", "metric": key, "kl": choice.kl, "value": value.value}
        rows.append({**row, "low": value.low, "high": value.high, "seeds": value.seeds})
        if _drawn(choice):
            axes.errorbar(
                [choice.kl], [value.value], yerr=whiskers(value), fmt="s", ms=3.5, mfc="white", color=INK, mew=0.9,
                elinewidth=0.9, zorder=3,
            )  # fmt: skip
    return [pd.DataFrame(rows)] if rows else []


def _drawn(choice: BestOfN) -> bool:
    """Powers of two by the proxy are enough for the eye."""
    return choice.by == "proxy" and choice.n > 1 and not choice.n & (choice.n - 1)


def _win_rate_bound(axes: Axes, farthest: float) -> pd.DataFrame:
    kl, rate = best_win_rate(farthest * 1.3)
    axes.plot(kl, rate, color=MUTED, lw=1.4, zorder=1)
    _best_of_line(axes, farthest)
    return pd.DataFrame({"part": "best possible", "metric": RATE, "kl": kl, "value": rate})


def _gold_bound(axes: Axes, scores: ReferenceScores) -> list[pd.DataFrame]:
    """Draw the best gold reward at each KL, by the reference's samples; nothing where their scores do not vary."""
    if len(scores.gold) < 2 or not scores.gold.std() > 0:
        return []
    path = tilted(scores.gold, groups=scores.gold_prompts)
    axes.plot(path.kl, path.value, color=MUTED, lw=1.4, zorder=1)
    axes.fill_between(path.kl, path.low, path.high, color=MUTED, alpha=0.15, lw=0, zorder=1)
    _best_of_line(axes, float(path.kl[-1]), scores.gold)
    return [_frame("best possible", path)]


def _optima(
    axes: Axes, scores: ReferenceScores, betas: list[tuple[ArmResult, float]], styles: dict[str, ArmStyle]
) -> tuple[list[pd.DataFrame], bool]:
    """Draw the optimum of the proxy, and lines from arms to it; tell whether some arm's own optimum is within reach."""
    if len(scores.proxy) < 2 or not scores.proxy.std() > 0:
        return [], False
    path = tilted(scores.proxy, scores.proxy_gold, scores.proxy_prompts)
    axes.plot(path.kl, path.value, color=MUTED, lw=1.0, linestyle=_OPTIMUM_DASHES, zorder=1)
    within = [(result, beta) for result, beta in betas if beta * path.strength[-1] >= 1]
    for result, beta in within:
        x, y = (float(np.interp(1 / beta, path.strength, values)) for values in (path.kl, path.value))
        color, reached = styles[result.arm].color, result.estimates
        axes.plot([reached[X].value, x], [reached[GOLD].value, y], color=color, lw=0.7, zorder=2)
        axes.plot([x], [y], marker=".", ms=4, color=color, zorder=2)
    return [_frame("optimum of the proxy", path)], bool(within)


def _frame(part: str, path: Path) -> pd.DataFrame:
    columns = {"kl": path.kl, "value": path.value, "low": path.low, "high": path.high, "strength": path.strength}
    return pd.DataFrame({"part": part, "metric": GOLD, **columns, "effective_samples": path.effective})


def _best_of_line(axes: Axes, most: float, scores: Array | None = None) -> None:
    """Draw best of n through counts from 1 to where its KL passes `most`, at most 10,000, with dots at `BEST_OF`."""
    counts = sorted({round(n) for n in np.geomspace(1.0, min(np.exp(most + 1.0), 10_000.0), 60)})
    axes.plot(*np.transpose([best_of(n, scores) for n in counts]), color=MUTED, lw=0.9, linestyle=_BEST_OF_DASHES)
    dots = [best_of(n, scores) for n in BEST_OF if scores is None or best_of(n)[0] <= most]
    axes.plot(*np.transpose(dots), ".", color=MUTED, ms=4, zorder=1) if dots else None


def _fixed_betas(records: StudyRecords, arms: list[ArmResult]) -> list[tuple[ArmResult, float]]:
    """Return the arms that train with a fixed, positive beta and choose no answer, with that beta."""
    configs = {cell.arm: cell.config for cell in records.plan if isinstance(cell, Cell)}
    plain = {arm: one for arm, one in configs.items() if one.algorithm.learns and one.evaluate.best_of == 1}
    betas = {arm: one.kl.beta for arm, one in plain.items() if one.kl.control == "fixed" and one.kl.beta > 0}
    return [(one, betas[one.arm]) for one in arms if one.arm in betas and GOLD in one.estimates]
