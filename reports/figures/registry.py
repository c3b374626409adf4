"""The list of figures, and how they are written: SVG, PDF, PNG and the CSV they were drawn from under one stem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from reports.figures import style
from reports.figures.curves import entropy, kl, training
from reports.figures.forest import effects, win_rate
from reports.figures.frontier import frontier
from reports.figures.interactions import interactions
from reports.figures.matched_kl import matched
from reports.figures.overoptimisation import overoptimisation
from reports.figures.price import price
from reports.figures.style import Plot
from reports.figures.tradeoff import tradeoff
from reports.figures.tuning import pareto
from reports.findings.findings import Findings
from reports.records.load import StudyRecords

FIGURES: dict[str, Callable[[StudyRecords, Findings], Plot | None]] = {
    "frontier": frontier, "overoptimisation": overoptimisation, "win_rate": win_rate, "effects": effects,
    "matched_kl": matched, "interactions": interactions, "kl": kl, "entropy": entropy, "training": training,
    "pareto": pareto, "tradeoff": tradeoff, "price": price,
}  # fmt: skip
"""Function that draws each figure, in the order of the page; None where the records hold nothing to draw."""


def draw(records: StudyRecords, findings: Findings, folder: Path) -> Iterator[tuple[str, Plot | None]]:
    """Draw every chosen figure of a study, all by default, and write its files into `folder`.

    None for a figure that the study's file names and the records hold nothing for; without its name there, it is left
    out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen, origin = records.study.figures, style.provenance(records)
    for name in dict.fromkeys(FIGURES if chosen is None else chosen):
        with style.house_style():
            drawn = FIGURES[name](records, findings)
            if drawn is not None:
                style.save(drawn.figure, folder / name, drawn.title, *origin)
                drawn.data.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
        if drawn is not None or chosen is not None:
            yield name, drawn
