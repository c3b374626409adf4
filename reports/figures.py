"""The list of figures, and how they are written: SVG, PNG, PDF and the CSV they were drawn from under one stem."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reports import costs, crossings, curves, frontier, overoptimisation, points, tuning
from reports.estimates import Findings
from reports.helper import Helper
from reports.load import MISSING, STALE, StudyRecords
from reports.style import Drawn, Provenance, house_style, save

FIGURES: dict[str, Callable[[StudyRecords, Findings], Drawn | None]] = {
    "frontier": frontier.frontier,
    "overoptimisation": overoptimisation.overoptimisation,
    "win_rate": points.win_rate,
    "effects": points.effects,
    "matched_kl": overoptimisation.matched,
    "interactions": crossings.interactions,
    "kl": curves.kl,
    "entropy": curves.entropy,
    "training": curves.training,
    "pareto": tuning.pareto,
    "importance": tuning.importance,
    "cost": costs.cost,
}
"""In the order of the page, by the names in `studies.schema.FIGURES`. Each gives None where the records hold nothing for it to draw."""


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
    """Files of an earlier report, by their name, that are known to be drawn from the same records: they are taken over."""
    origin: Provenance
    """What every figure states it was drawn from."""

    def __call__(self, name: str) -> Words | None:
        """Draw and write one figure; None where the records hold nothing for it."""
        with house_style():
            drawn = FIGURES[name](self.records, self.findings)
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
    """Draw and write every chosen figure into `folder`, some of them by `helper`. The files do not depend on who drew them.

    None for a figure that the study's file names and the records hold nothing for; one that was not asked for by
    name is then left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, paint = chosen_figures(records), Painter(records, findings, folder, earlier or {}, provenance(records))
    found = helper.draw(names, paint) if helper else {name: paint(name) for name in names}
    for name in names:
        if found[name] is not None or records.study.figures is not None:
            yield name, found[name]


def provenance(records: StudyRecords) -> Provenance:
    """What a figure was drawn from: the design, the code, and every run that counted."""
    ran = records.trials[~records.trials["status"].isin([MISSING, STALE])]
    used = [records.records[str(arm), int(seed)] for arm, seed in zip(ran["arm"], ran["seed"], strict=True)]
    commits = dict.fromkeys(record.environment.get("git_commit", "") for record in used)
    return Provenance(
        subject=f"study {records.study.name}, profile {records.profile}, design {records.digest}",
        commit=", ".join(commit for commit in commits if commit) or "unknown",
        runs=tuple(f"{r.arm} seed {r.seed}: {r.stages['ppo'].key}" for r in used if "ppo" in r.stages),
    )
