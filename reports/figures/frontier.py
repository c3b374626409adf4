"""The reward-KL frontier: what every arm gained for its drift, below the best that any policy could have gained."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports.figures.curves import seed_counts
from reports.figures.forest import INTERVAL_SENTENCE, crossed, estimate_rows, whiskers
from reports.figures.style import (
    INK,
    MUTED,
    SINGLE,
    ArmStyle,
    Drawn,
    arm_styles,
    legend_columns,
    legend_entry,
    new_figure,
    square_root,
)
from reports.findings.best_of_n import BestOfN, best_of_draws, choosing_arms
from reports.findings.bound import Path, ReferenceScores, best_of, best_win_rate, reference_scores, tilted
from reports.findings.findings import ArmResult, Findings
from reports.findings.references import arms_with_another_reference
from reports.records.load import StudyRecords
from reports.text.words import listed, number
from studies.definition.design import Cell

X = "eval/kl_per_sequence"
PANELS = ("eval/gold", "eval/win_rate")
BEST_OF = (2, 4, 16, 64)
_BEST_OF_DASHES = (0, (1, 1.5))
_OPTIMUM_DASHES = (0, (6, 1.5, 1.2, 1.5))


def frontier(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Gold reward and win rate against exact KL per sequence, one point per arm, with the bounds."""
    arms = [result for result in findings.arms if X in result.estimates]
    if not arms:
        return None
    styles = arm_styles(records.study)
    farthest = max(max(*result.per_seed[X].values(), result.estimates[X].high or 0.0) for result in arms)
    columns = min(3, legend_columns([*styles, "best of n by the proxy"], SINGLE))
    figure = new_figure(SINGLE, 5.2 + 0.17 * -(-(len(arms) + 5) // columns))
    top, bottom = figure.subplots(2, 1, sharex=True)
    for axes, key in ((top, PANELS[0]), (bottom, PANELS[1])):
        for result in arms:
            if key in result.estimates:
                crossed(axes, result, X, key, styles[result.arm])
    judged = records.reference_gold()
    for axes, at in ((top, judged[0] if judged else None), (bottom, 0.5)):
        if at is not None:
            axes.plot([0], [at], marker="o", mfc="white", mec=MUTED, ms=5, clip_on=False, zorder=5)
    scores = reference_scores(records)
    data = [estimate_rows(result, (X, *PANELS)) for result in arms]
    published = records.study.imported is not None
    data += [] if published else [_win_rate_bound(bottom, farthest)]
    marked = False
    if scores is not None:
        bounds, marked = _gold_bounds(top, scores, _fixed_betas(records, arms), styles)
        data += bounds
    chosen = best_of_draws(records)
    farthest = max(farthest, *(choice.kl for choice in chosen if _drawn(choice)), 0.0)
    for axes, key in ((top, PANELS[0]), (bottom, PANELS[1])):
        data += _chosen(axes, chosen, key)
    square_root(bottom.xaxis, farthest)
    top.set_ylabel("gold reward [judge points]")
    bottom.set_ylabel("win rate [fraction]")
    bottom.set_ylim(0, 1.02)
    kind = "KL to the reference, as published" if published else "exact KL to the reference"
    bottom.set_xlabel(f"{kind} [nats per sequence], square-root scale")
    evaluated = {result.arm for result in arms}
    shown = [legend_entry(arm, style) for arm, style in styles.items() if arm in evaluated]
    for handle in shown:
        handle.set_linestyle("")
    figure.legend(
        handles=shown + _legend(scores, bool(chosen))[: 1 if published else None],
        loc="outside upper left",
        ncols=columns,
        handlelength=2.2,
    )
    alt = "Scatter of gold reward and of win rate against KL: " + "; ".join(
        f"{r.arm} KL {number(r.estimates[X].value)}, gold {number(gold.value if gold else None)}"
        for r in arms
        for gold in [r.estimates.get(PANELS[0])]
    )
    return Drawn(
        figure,
        pd.concat(data, ignore_index=True),
        "Reward-KL frontier",
        _caption(arms, scores, marked, published)
        + _chosen_sentence(chosen)
        + _choosing_sentence(records, evaluated)
        + _apart_sentence(records, evaluated),
        alt + ".",
    )


def _caption(arms: list[ArmResult], scores: ReferenceScores | None, marked: bool, published: bool) -> str:
    text = (
        "What each arm gained and how far it drifted. Large points: means; small points: single seeds"
        f" ({seed_counts({result.arm: len(result.seeds) for result in arms})}; {_prompts(arms)} prompts each)."
        f" {INTERVAL_SENTENCE}."
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


def _chosen(axes: Axes, choices: list[BestOfN], key: str) -> list[pd.DataFrame]:
    """Draw best of n by the proxy; the rows of all choices."""
    rows = []
    for choice in choices:
        value = choice.gold if key == "eval/gold" else choice.win_rate
        if value is None:
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


def _chosen_sentence(choices: list[BestOfN]) -> str:
    """For the caption; empty without choices."""
    shown = [choice for choice in choices if _drawn(choice)]
    if not shown:
        return ""
    counts = ", ".join(str(choice.n) for choice in shown)
    return (
        f" Squares: the best of n = {counts} answers of the reference by the proxy, averaged over all choices of n of a"
        f" prompt's answers (n = {shown[0].gold.seeds} × {shown[0].gold.prompts} references and held-out prompts);"
        " their KL is an upper bound, and a win rate needs answers that were not chosen among."
    )


def _choosing_sentence(records: StudyRecords, arms: set[str]) -> str:
    """For the caption, on arms that choose their answers; empty without any."""
    counts = {arm: count for arm, count in choosing_arms(records).items() if arm in arms}
    if not counts:
        return ""
    named = listed([f"{arm} (n = {count})" for arm, count in counts.items()])
    one = len(counts) == 1
    return (
        f" {named} {'answers' if one else 'answer'} with the best of n samples by the proxy; the KL of"
        f" {'this arm' if one else 'these arms'} is an upper bound."
    )


def _apart_sentence(records: StudyRecords, arms: set[str]) -> str:
    """For the caption, on arms whose reference is another network than the baseline's; empty without any."""
    apart = [arm for arm in arms_with_another_reference(records) if arm in arms]
    if not apart:
        return ""
    return (
        f" {listed(apart)}: KL and win rate are against a reference in few bits; the bounds, made with that of"
        f" {records.study.baseline}, need not hold there."
    )


def _legend(scores: ReferenceScores | None, chosen: bool) -> list[Line2D]:
    entries = [
        Line2D([], [], marker="o", mfc="white", mec=MUTED, ms=5, linestyle="", label="reference"),
        Line2D([], [], color=MUTED, lw=1.4, label="best possible"),
        Line2D([], [], color=MUTED, lw=0.9, linestyle=_BEST_OF_DASHES, marker=".", ms=4, label="best of n"),
    ]
    if scores is not None and len(scores.proxy):
        entries.append(Line2D([], [], color=MUTED, lw=1.0, linestyle=_OPTIMUM_DASHES, label="optimum of the proxy"))
    if chosen:
        entries.append(
            Line2D([], [], marker="s", mfc="white", mec=INK, ms=3.5, linestyle="", label="best of n by the proxy")
        )
    return entries


def _win_rate_bound(axes: Axes, farthest: float) -> pd.DataFrame:
    kl, rate = best_win_rate(farthest * 1.3)
    axes.plot(kl, rate, color=MUTED, lw=1.4, zorder=1)
    _best_of_line(axes, np.array([best_of(n) for n in _counts(farthest)]), np.array([best_of(n) for n in BEST_OF]))
    return pd.DataFrame({"part": "best possible", "metric": "eval/win_rate", "kl": kl, "value": rate})


def _gold_bounds(
    axes: Axes, scores: ReferenceScores, optima: list[tuple[ArmResult, float]], styles: dict[str, ArmStyle]
) -> tuple[list[pd.DataFrame], bool]:
    """Draw what the reference's samples tell, nothing where their scores do not vary; whether some arm's own optimum is
    within reach."""
    frames, marked = [], False
    if len(scores.gold) > 1 and scores.gold.std() > 0:
        path = tilted(scores.gold, groups=scores.gold_prompts)
        axes.plot(path.kl, path.value, color=MUTED, lw=1.4, zorder=1)
        axes.fill_between(path.kl, path.low, path.high, color=MUTED, alpha=0.15, lw=0, zorder=1)
        frames.append(_frame("best possible", path))
        _best_of_line(
            axes,
            np.array([best_of(n, scores.gold) for n in _counts(float(path.kl[-1]))]),
            np.array([best_of(n, scores.gold) for n in BEST_OF if best_of(n)[0] <= path.kl[-1]]),
        )
    if len(scores.proxy) > 1 and scores.proxy.std() > 0:
        path = tilted(scores.proxy, scores.proxy_gold, scores.proxy_prompts)
        axes.plot(path.kl, path.value, color=MUTED, lw=1.0, linestyle=_OPTIMUM_DASHES, zorder=1)
        frames.append(_frame("optimum of the proxy", path))
        for result, beta in optima:
            if beta * path.strength[-1] >= 1:
                marked = True
                x, y = (float(np.interp(1 / beta, path.strength, values)) for values in (path.kl, path.value))
                color, reached = styles[result.arm].color, result.estimates
                axes.plot([reached[X].value, x], [reached["eval/gold"].value, y], color=color, lw=0.7, zorder=2)
                axes.plot([x], [y], marker=".", ms=4, color=color, zorder=2)
    return frames, marked


def _frame(part: str, path: Path) -> pd.DataFrame:
    columns = {"kl": path.kl, "value": path.value, "low": path.low, "high": path.high, "strength": path.strength}
    return pd.DataFrame({"part": part, "metric": "eval/gold", **columns, "effective_samples": path.effective})


def _best_of_line(axes: Axes, line: np.ndarray, dots: np.ndarray) -> None:
    axes.plot(line[:, 0], line[:, 1], color=MUTED, lw=0.9, linestyle=_BEST_OF_DASHES, zorder=1)
    if len(dots):
        axes.plot(dots[:, 0], dots[:, 1], color=MUTED, linestyle="", marker=".", ms=4, zorder=1)


def _counts(most: float) -> list[int]:
    """Best of which n to draw a line through, from 1 to where its KL passes `most`, at most 10,000."""
    return sorted({round(n) for n in np.geomspace(1.0, min(np.exp(most + 1.0), 10_000.0), 60)})


def _fixed_betas(records: StudyRecords, arms: list[ArmResult]) -> list[tuple[ArmResult, float]]:
    """The arms whose beta is fixed and positive, with it; only those that were trained with it and choose no answer."""
    trained = [cell for cell in records.plan if isinstance(cell, Cell) and cell.config.algorithm.learns]
    plain = [cell for cell in trained if cell.config.evaluate.best_of == 1]
    settings = {cell.arm: cell.config.kl for cell in plain if cell.config.kl.control == "fixed"}
    fixed = [result for result in arms if result.arm in settings and "eval/gold" in result.estimates]
    return [(result, settings[result.arm].beta) for result in fixed if settings[result.arm].beta > 0]


def _prompts(arms: list[ArmResult]) -> str:
    counts = sorted({result.estimates[X].prompts for result in arms})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
