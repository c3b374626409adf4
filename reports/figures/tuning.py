"""The figure of a search: what was traded for what. Of the tuning alone; confirmation stands apart."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pipeline.run.metrics import METRICS
from reports.figures.style import INK, MUTED, SINGLE, Drawn, new_figure
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.records.searches import SearchResult
from reports.text.words import counted, name, number
from studies.definition.search import Tried, objectives

DRIFT = "eval/kl_per_sequence"
_BLUE = "#0173b2"
NAMES_APART = 16
"""Points between the names of confirmed trials, which often lie side by side."""


def pareto(records: StudyRecords, findings: Findings) -> Drawn | None:
    """Every trial of the search by its two metrics, with the front that no trial beats and what was confirmed."""
    search = findings.search
    if search is None:
        return None
    x, y = _axes(records, search)
    drawn = [trial for trial in search.trials if x in trial.values and y in trial.values]
    if not x or not drawn:
        return None
    best = _front(records, search, drawn, x, y)
    figure = new_figure(SINGLE, 3.6)
    axes = figure.subplots()
    for trial in drawn:
        _trial(axes, trial, x, y, on_front=trial.number in best)
    front = sorted((trial.values[x], trial.values[y]) for trial in drawn if trial.number in best)
    axes.plot([at for at, _ in front], [at for _, at in front], color=INK, lw=1.0, zorder=1)
    arms = {number: arm for arm, number in search.confirmed.items()}
    chosen = sorted((trial for trial in drawn if trial.number in arms), key=lambda trial: -trial.values[y])
    for place, trial in enumerate(chosen):
        at = (trial.values[x], trial.values[y])
        # In the order of height, so that no line to a name crosses another.
        up = NAMES_APART * ((len(chosen) - 1) / 2 - place)
        line = {"arrowstyle": "-", "color": INK, "lw": 0.5, "shrinkB": 5}
        axes.annotate(
            arms[trial.number],
            at,
            (16, up),
            textcoords="offset points",
            fontsize=7,
            color=INK,
            va="center",
            arrowprops=line,
        )
        axes.plot(*[[value] for value in at], marker="o", ms=10, mfc="none", mec=INK, mew=0.9, linestyle="", zorder=4)
    axes.set_xlabel(f"{name(x)} [{METRICS[x].unit}]" if x in METRICS else x)
    axes.set_ylabel(f"{name(y)} [{METRICS[y].unit}]")
    figure.legend(handles=_legend(bool(arms)), loc="outside upper left", ncols=2)
    return Drawn(
        figure,
        _table(search, drawn, best, x, y),
        "Trials of the search",
        _caption(search, drawn),
        _alt(drawn, front, x, y),
    )


def _axes(records: StudyRecords, search: SearchResult) -> tuple[str, str]:
    """What the search traded for what: a second aim, else what it constrained, else drift; and the first aim. Empty
    without a second."""
    aims, settings = [aim.metric for aim in objectives(records.study)], records.study.search
    constrained = [constraint.metric for constraint in settings.constraints] if settings else []
    wanted = [
        key for key in (*aims[1:], *constrained, DRIFT, *search.metrics) if key != aims[0] and key in search.metrics
    ]
    return wanted[0] if wanted else "", aims[0]


def _front(records: StudyRecords, search: SearchResult, drawn: list[Tried], x: str, y: str) -> set[int]:
    """Trials that kept the constraints and that no other such one beats on both metrics; of several aims, as the search
    itself found."""
    aims = objectives(records.study)
    if len(aims) > 1:
        return set(search.pareto)
    up = 1 if aims[0].direction == "maximize" else -1
    # The second metric is then no aim of the search: less of it (drift, what was constrained) is taken as better.
    places = {trial.number: (-trial.values[x], up * trial.values[y]) for trial in drawn if trial.feasible}
    return {
        number
        for number, own in places.items()
        if not any(other != own and other[0] >= own[0] and other[1] >= own[1] for other in places.values())
    }


def _trial(axes: Axes, trial: Tried, x: str, y: str, *, on_front: bool) -> None:
    at = [trial.values[x]], [trial.values[y]]
    if not trial.feasible:
        axes.plot(*at, marker="x", ms=4.5, color=MUTED, mew=1.0, linestyle="", zorder=2)
    elif on_front:
        axes.plot(*at, marker="D", ms=5, color=INK, mec="white", mew=0.6, linestyle="", zorder=3)
    else:
        axes.plot(*at, marker="o", ms=4.5, color=_BLUE, mec="white", mew=0.6, linestyle="", zorder=2)


def _legend(confirmed: bool) -> list[Line2D]:
    entries = [
        Line2D([], [], marker="D", ms=5, color=INK, linestyle="-", lw=1.0, label="no trial beats it on both"),
        Line2D([], [], marker="o", ms=4.5, color=_BLUE, linestyle="", label="beaten"),
        Line2D([], [], marker="x", ms=4.5, color=MUTED, linestyle="", label="breaks a constraint"),
    ]
    ring = Line2D([], [], marker="o", ms=8, mfc="none", mec=INK, linestyle="", label="confirmed on fresh seeds")
    return [*entries, ring] if confirmed else entries


def _table(search: SearchResult, drawn: list[Tried], best: set[int], x: str, y: str) -> pd.DataFrame:
    arms = {number: arm for arm, number in search.confirmed.items()}
    rows = [
        {"number": t.number, "arm": t.arm, "status": t.status, "feasible": t.feasible, "front": t.number in best}
        | {"confirmed_as": arms.get(t.number), x: t.values[x], y: t.values[y], **t.overrides}
        for t in drawn
    ]
    return pd.DataFrame(rows)


def _caption(search: SearchResult, drawn: list[Tried]) -> str:
    left = len(search.trials) - len(drawn)
    text = (
        f"Trials of the search (n = {len(drawn)}, one seed each, no interval): the best of many noisy trials looks"
        " better than it is, so these are not results. The configurations confirmed on fresh seeds are in the tables of"
        " arms and effects."
    )
    return text + (
        f" {counted(left, 'trial')} without both metrics (pruned, diverged or failed) not drawn." if left else ""
    )


def _alt(drawn: list[Tried], front: list[tuple[float, float]], x: str, y: str) -> str:
    best = "; ".join(f"{number(a)} and {number(b, y)}" for a, b in front)
    return f"Scatter of {len(drawn)} trials by {name(x)} and {name(y)}; the front runs through {best or 'no trial'}."
