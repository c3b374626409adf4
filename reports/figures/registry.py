"""The list of figures, and how they are written: SVG, PNG, PDF and the CSV they were drawn from under one stem."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.records.provenance import Provenance, provenance

if TYPE_CHECKING:
    from reports.figures.second_process import Helper
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
    "cost": "reports.figures.cost:cost",
}
"""Where each figure is made, in the order of the page, by the names in `studies.definition.schema.FIGURES`.

Imported only where something is drawn: matplotlib takes as long to import as a study to analyse.
"""
SLOWEST_FIRST = ("training", "overoptimisation", "matched_kl", "effects", "frontier")
"""Drawn before the others, so that two processes end at about the same time."""


def figure(name: str) -> Callable[[StudyRecords, Findings], Drawn | None]:
    """What draws the figure of this name; it gives None where the records hold nothing for it to draw."""
    draw_figure: Callable[[StudyRecords, Findings], Drawn | None] = resolve_name(FIGURES[name])
    return draw_figure


def import_figures() -> None:
    """Import what draws, before there is anything to draw."""
    for name in FIGURES:
        figure(name)


def chosen_figures(records: StudyRecords) -> list[str]:
    """The study's figures, each once; all by default."""
    return list(dict.fromkeys(records.study.figures if records.study.figures is not None else FIGURES))


SUFFIXES = (".svg", ".png", ".pdf", ".csv")


@dataclass(frozen=True)
class Words:
    """What a page says of a figure."""

    title: str
    caption: str
    alt: str
    wide: bool


@dataclass(frozen=True)
class Painter:
    """Draws figures of one study into the files of `folder`."""

    records: StudyRecords
    findings: Findings
    folder: Path
    earlier: Mapping[str, Path]
    """Files of an earlier report, by their name, that are known to be drawn from the same records: they are taken
    over."""
    origin: Provenance
    """What every figure states it was drawn from."""

    def __call__(self, name: str) -> Words | None:
        """Draw and write one figure; None where the records hold nothing for it."""
        from reports.figures.style import house_style, save

        with house_style():
            drawn = figure(name)(self.records, self.findings)
            if drawn is None:
                return None
            files = [f"{name}{suffix}" for suffix in SUFFIXES]
            if all(file in self.earlier for file in files):
                for file in files:
                    shutil.copyfile(self.earlier[file], self.folder / file)
            else:
                save(drawn.figure, self.folder / name, drawn.title, self.origin)
                drawn.data.to_csv(self.folder / f"{name}.csv", index=False, lineterminator="\n")
        return Words(drawn.title, drawn.caption, drawn.alt, drawn.wide)


def draw(
    records: StudyRecords,
    findings: Findings,
    folder: Path,
    earlier: Mapping[str, Path] | None = None,
    helper: Helper | None = None,
) -> Iterator[tuple[str, Words | None]]:
    """Draw and write every chosen figure into `folder`, some of them by `helper`. The files do not depend on who drew
    them.

    None for a figure that the study's file names and the records hold nothing for; one that was not asked for by
    name is then left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, paint = chosen_figures(records), Painter(records, findings, folder, earlier or {}, provenance(records))
    ordered = sorted(names, key=lambda name: SLOWEST_FIRST.index(name) if name in SLOWEST_FIRST else len(SLOWEST_FIRST))
    drawn = helper.draw(ordered, paint) if helper else {name: paint(name) for name in names}
    for name in names:
        if drawn[name] is not None or records.study.figures is not None:
            yield name, drawn[name]
