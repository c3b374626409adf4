"""The figure of a search: the trade between two metrics. Of the tuning alone; confirmation stands apart."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.figures.style import BLUE, INK, MUTED, SINGLE, Plot, entry, legend, new_figure
from reports.findings.findings import Findings
from reports.records.load import SearchResult, StudyRecords
from reports.text.say import say
from reports.text.words import name, number
from studies.definition.search import Tried, objectives
from studies.definition.search import pareto as dominating

DRIFT = "eval/kl_per_sequence"
NAMES_APART = 16
"""Points between the names of confirmed trials, which often lie side by side."""
_FRONT: dict[str, Any] = {"marker": "D", "ms": 5, "color": INK, "zorder": 3}
_BEATEN: dict[str, Any] = {"marker": "o", "ms": 4.5, "color": BLUE, "zorder": 2}
_BROKEN: dict[str, Any] = {"marker": "x", "ms": 4.5, "color": MUTED, "mec": MUTED, "mew": 1.0, "zorder": 2}
_CONFIRMED: dict[str, Any] = {"marker": "o", "ms": 10, "color": INK, "mfc": "none", "mec": INK, "mew": 0.9, "zorder": 4}


def pareto(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw every trial of the search by its two metrics, the front that no trial beats, and the confirmed ones."""
    search = findings.search
    if search is None:
        return None
    x, y = _axes(records, search)
    drawn = [trial for trial in search.trials if x in trial.values and y in trial.values]
    if not x or not drawn:
        return None
    best, arms = _front(records, search, drawn, x), {number: arm for arm, number in search.confirmed.items()}
    figure = new_figure(SINGLE, 3.3)
    axes = figure.subplots()
    for trial in drawn:
        look = _BROKEN if not trial.feasible else _FRONT if trial.number in best else _BEATEN
        axes.plot(trial.values[x], trial.values[y], **{"mec": "white", "linestyle": "", **look})
    front = sorted((trial.values[x], trial.values[y]) for trial in drawn if trial.number in best)
    axes.plot(*zip(*front, strict=True), color=INK, lw=1.0, zorder=1) if front else None
    # In the order of height, so that no line to a name crosses another.
    chosen = sorted((trial for trial in drawn if trial.number in arms), key=lambda trial: -trial.values[y])
    for place, trial in enumerate(chosen):
        at, up = (trial.values[x], trial.values[y]), NAMES_APART * ((len(chosen) - 1) / 2 - place)
        axes.annotate(
            arms[trial.number], at, (16, up), textcoords="offset points", fontsize=7, color=INK, va="center",
            arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.5, "shrinkB": 5},
        )  # fmt: skip
        axes.plot(*at, linestyle="", **_CONFIRMED)
    axes.set_xlabel(f"{name(x)} [{METRICS[x].unit}]" if x in METRICS else x)
    axes.set_ylabel(f"{name(y)} [{METRICS[y].unit}]")
    handles = [entry("no trial beats it on both", dashes="-", lw=1.0, **_FRONT), entry("beaten", **_BEATEN)]
    handles += [entry("breaks a constraint", **_BROKEN)]
    handles += [entry("confirmed on fresh seeds", **{**_CONFIRMED, "ms": 8})] if arms else []
    legend(figure, handles)
    rows = [
        {"number": t.number, "arm": t.arm, "status": t.status, "feasible": t.feasible, "front": t.number in best}
        | {"confirmed_as": arms.get(t.number), x: t.values[x], y: t.values[y], **t.overrides}
        for t in drawn
    ]
    caption = say("figures", "pareto", len(drawn), len(search.trials) - len(drawn))
    places = "; ".join(f"{number(a)} and {number(b, y)}" for a, b in front) or "no trial"
    alt = f"Scatter of {len(drawn)} trials by {name(x)} and {name(y)}; the front runs through {places}."
    return Plot(figure, pd.DataFrame(rows), "Trials of the search", caption, alt)


def _axes(records: StudyRecords, search: SearchResult) -> tuple[str, str]:
    """Return the metric that the search traded its first aim for, and that aim. The former is a second aim, else a
    constrained metric, else drift; empty without any."""
    aims, settings = [aim.metric for aim in objectives(records.study)], records.study.search
    constrained = [constraint.metric for constraint in settings.constraints] if settings else []
    wanted = (*aims[1:], *constrained, DRIFT, *search.metrics)
    return next((key for key in wanted if key != aims[0] and key in search.metrics), ""), aims[0]


def _front(records: StudyRecords, search: SearchResult, drawn: list[Tried], x: str) -> set[int]:
    """Return the trials that kept the constraints and that no other such one beats on both metrics; of several aims,
    those that the search found itself."""
    aims = objectives(records.study)
    # Of a single aim the other metric is none: less of it (drift, a constrained metric) is taken as better.
    less = aims[0].model_copy(update={"metric": x, "direction": "minimize"})
    return set(search.pareto if len(aims) > 1 else dominating(drawn, (aims[0], less)))
