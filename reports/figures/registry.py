"""The list of figures, and how they are written: SVG, PDF, PNG and the CSV they were drawn from under one stem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from reports.figures.style import provenance
from reports.findings.findings import Findings
from reports.records.load import StudyRecords

if TYPE_CHECKING:
    from reports.figures.style import Drawn

FIGURES = {
    "frontier": "reports.figures.frontier:frontier",
    "overoptimisation": "reports.figures.overoptimisation:overoptimisation",
    "win_rate": "reports.figures.forest:win_rate",
    "effects": "reports.figures.forest:effects",
    "matched_kl": "reports.figures.matched_kl:matched",
    "interactions": "reports.figures.interactions:interactions",
    "kl": "reports.figures.curves:kl",
    "entropy": "reports.figures.curves:entropy",
    "training": "reports.figures.curves:training",
    "pareto": "reports.figures.tuning:pareto",
    "tradeoff": "reports.figures.tradeoff:tradeoff",
    "price": "reports.figures.price:price",
}
"""Where each figure is made, in the order of the page, by the names in `studies.definition.schema.FIGURES`.

Imported only where something is drawn: matplotlib takes as long to import as a study to analyse.
"""


def figure(name: str) -> Callable[[StudyRecords, Findings], Drawn | None]:
    """Return the function that draws the figure of this name; it gives None where the records hold nothing for it."""
    draw_figure: Callable[[StudyRecords, Findings], Drawn | None] = resolve_name(FIGURES[name])
    return draw_figure


def draw(records: StudyRecords, findings: Findings, folder: Path) -> Iterator[tuple[str, Drawn | None]]:
    """Draw every chosen figure of a study, all by default, and write its files into `folder`.

    None for a figure that the study's file names and the records hold nothing for; without its name there, it is left
    out.
    """
    from reports.figures import style

    folder.mkdir(parents=True, exist_ok=True)
    chosen, origin = records.study.figures, provenance(records)
    for name in dict.fromkeys(FIGURES if chosen is None else chosen):
        with style.house_style():
            drawn = figure(name)(records, findings)
            if drawn is not None:
                style.save(drawn.figure, folder / name, drawn.title, origin)
                drawn.data.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
        if drawn is not None or chosen is not None:
            yield name, drawn
