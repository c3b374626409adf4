"""The list of figures, and how they are written: SVG, PNG, PDF and the CSV they were drawn from under one stem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.config import nearest
from pipeline.errors import UserError
from reports import curves, points
from reports.estimates import Findings
from reports.load import StudyRecords
from reports.style import Drawn, house_style, save

FIGURES: dict[str, Callable[[StudyRecords, Findings], Drawn | None]] = {
    "kl": curves.kl,
    "entropy": curves.entropy,
    "frontier": points.frontier,
    "overoptimisation": curves.overoptimisation,
    "win_rate": points.win_rate,
    "effects": points.effects,
    "training": curves.training,
}


def chosen_figures(records: StudyRecords) -> list[str]:
    """The study's figures, all by default; an unknown name is a `UserError` with the nearest right one."""
    names = list(records.study.figures if records.study.figures is not None else FIGURES)
    for name in names:
        if name not in FIGURES:
            hint = nearest(name, list(FIGURES))
            raise UserError(
                f"{records.study.source or records.study.name}: figures: no figure '{name}'{hint}; there are: {', '.join(FIGURES)}"
            )
    return list(dict.fromkeys(names))


def draw(records: StudyRecords, findings: Findings, folder: Path) -> Iterator[tuple[str, Drawn | None]]:
    """Draw and write every chosen figure into `folder`; None where the records hold nothing to draw."""
    folder.mkdir(parents=True, exist_ok=True)
    subject = f"study {records.study.name}, profile {records.profile}, design {records.digest}"
    with house_style():
        for name in chosen_figures(records):
            drawn = FIGURES[name](records, findings)
            if drawn is not None:
                save(drawn.figure, folder / name, drawn.title, subject)
                drawn.data.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
            yield name, drawn
