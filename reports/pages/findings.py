"""Findings of papers beside what the published studies found: one page, one table, one figure.

`papers.yaml` names for each finding the claim that tests it on each testbed. All numbers are read from the published
folders, which `ablate publish` writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from reports.figures.papers import ENDS, TESTBEDS, papers, predicted
from reports.figures.style import PNG_DPI, house_style
from reports.pages.page import rendered, write_text
from reports.tables.table import DASH, Head, Table, TableCell, declared, toned, words, write
from reports.text.words import number
from studies.definition.schema import study_names

CLAIMS = "findings.tsv"
"""File of each published study: a row per hypothesis and falsifier."""
EXAMPLE = Path(__file__).parents[1] / "example"
VERDICTS = {
    "SUPPORTED": "REPRODUCED", "SURVIVED": "REPRODUCED", "REFUTED": "REFUTED", "FALSIFIED": "REFUTED",
}  # fmt: skip
"""Verdict on a finding, by that on the claim of ours which states it, where that was decided; others stay."""
AGAIN = "-confirm"
"""Ending of the folder with the same study on other seeds."""


@cache
def findings() -> list[dict[str, Any]]:
    """All findings, those that matter most to a practitioner first: their words (`finding`), `source`, `setting`, what
    `differs` here, and by testbed FOLDER/CLAIM, or NOT COMPARABLE and the reason."""
    content: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text("utf-8"))
    return content


def folders() -> dict[str, tuple[str, str | None]]:
    """Map each published folder that the findings need to its study, and its profile if not the study's own."""
    places = [one[bed] for one in findings() for bed in TESTBEDS if bed in one]
    names = dict.fromkeys(place.partition("/")[0] for place in places if not place.startswith("NOT COMPARABLE"))
    return {name: (name.partition("-")[0], name.partition("-")[2] or None) for name in names}


def published_claims(folder: Path) -> list[dict[str, Any]]:
    """Return the row of each claim of a published study, None in empty cells; no row where the folder is absent."""
    if not (folder / CLAIMS).exists():
        return []
    rows = pd.read_csv(folder / CLAIMS, sep="\t").astype(object)
    return rows.where(rows.notna(), None).to_dict("records")  # type: ignore[return-value]


def published_hours() -> float:
    """Hours that the trials of these studies took when they were published; those of which that is known."""
    claims = (published_claims(EXAMPLE / name) for name in folders())
    return sum(float(own[0]["hours"] or 0) for own in claims if own)


def write_index(root: Path, pages: Mapping[str, str] | None = None) -> Path:
    """Write the findings of papers, with a figure, and the studies that are published below `root`, as Markdown; with
    `pages`, links from folders to the full pages of their studies, as HTML with its tables for programs. Return the
    page."""
    places = [path.parent for path in sorted(root.glob(f"*/{CLAIMS}"))]
    every = [{**row, "folder": place.name} for place in places for row in published_claims(place)]
    tested = list(_tested(every))
    with house_style():
        figure = papers(tested)
        if figure:
            figure.figure.savefig(root / "findings.png", dpi=PNG_DPI, metadata={"Software": None})
    links = {folder: f"{folder}/README.md" for folder in (place.name for place in places)} | dict(pages or {})
    tables = [_findings(tested, links), _studies(every, root, links), _differences()]
    shown: dict[str, Any] = {
        "tables": {table.name: table for table in tables},
        "figure": figure,
        "missing": [name for name in study_names() if name not in {row["study"] for row in every}],
        "verdicts": f"{len(tested)} rows: {_counted(one['verdict'] for one in tested)}",
    }
    if pages is None:
        page, template = root / "README.md", "findings.md.j2"
    else:
        page, template = root / "index.html", "findings.html.j2"
        write(tables, root / "tables")
    write_text(page, rendered(template, shown))
    return page


def _tested(every: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row per finding and testbed: what was found, on the seeds of the study and on those of its confirmation
    (keys that begin with `again_`), or why nothing was."""
    claims = {f"{row['folder']}/{row['name']}": row for row in every}
    for one in findings():
        theirs = one.get("theirs", {})
        for bed in (bed for bed in TESTBEDS if bed in one):
            verdict, _, why = one[bed].partition(": ")
            folder, _, claim = one[bed].partition("/")
            found, same = claims.get(one[bed], {}), claims.get(f"{folder}{AGAIN}/{claim}")
            again = {f"again_{key}": same.get(key) for key in ("effect", *ENDS)} if same else {}
            again |= {"again_verdict": _verdict(same, theirs)} if same else {}
            verdict = verdict if why else _verdict(found, theirs)
            yield {**found, **theirs, **again, **one, "testbed": bed, "verdict": verdict, "why": why}


def _counted(verdicts: Iterable[str]) -> str:
    """``SUPPORTED: 3, UNDECIDED: 1``, the most frequent first."""
    return ", ".join(f"{verdict}: {n}" for verdict, n in Counter(verdicts).most_common())


def _verdict(found: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Our own verdict, where our claim states the finding; else what the 95 % interval shows of the paper's."""
    if "verdict" not in found:
        return "NOT RUN"
    if not theirs or found["verdict"] == "NOT TESTED":
        return VERDICTS.get(found["verdict"], str(found["verdict"]))
    low, high = found.get("estimate_low"), found.get("estimate_high")
    if low is None or high is None:
        return "UNDECIDED"
    least, most = predicted(**theirs)
    return "REPRODUCED" if least <= low and high <= most else "REFUTED" if high < least or most < low else "UNDECIDED"


def repeated(runs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Count what became of verdicts on other seeds: of those that were decided, and of the others.

    >>> repeated([("SUPPORTED", "UNDECIDED"), ("REFUTED", "REFUTED"), ("NOT TESTED", "SUPPORTED")])
    {'decided': 2, 'stayed': 1, 'turned': 0, 'others': 1, 'came': 1}
    """
    sides = set(VERDICTS.values())
    pairs = [tuple(VERDICTS.get(verdict, verdict) for verdict in run) for run in runs]
    decided = [pair for pair in pairs if pair[0] in sides]
    return {
        "decided": len(decided),
        "stayed": sum(first == second for first, second in decided),
        "turned": sum(first != second and second in sides for first, second in decided),
        "others": len(pairs) - len(decided),
        "came": sum(first not in sides and second in sides for first, second in pairs),
    }


def _expected(expect: str, margin: float) -> str:
    """Say what a paper predicts of an effect.

    >>> _expected("higher", -0.03), _expected("equal", 0.5)
    ('above −0.03', 'within 0.5 of 0')
    """
    least, most = predicted(expect, margin)
    text = f"above {least:g}" if most == inf else f"below {most + 0.0:g}" if least == -inf else f"within {most:g} of 0"
    return text.replace("-", "−")


def _findings(tested: list[dict[str, Any]], links: Mapping[str, str]) -> Table:
    """Show a row per finding and testbed."""

    def claim(row: Mapping[str, Any]) -> TableCell:
        if "claim" not in row:
            return DASH
        theirs = f"the paper predicts an effect {_expected(**row['theirs'])}" if "theirs" in row else ""
        return TableCell(row["claim"], theirs, link=links[row["folder"]])

    def again(row: Mapping[str, Any]) -> TableCell:
        if "again_verdict" not in row:
            return DASH
        link = links[row[row["testbed"]].partition("/")[0] + AGAIN]
        return replace(toned(row["again_verdict"], row["again_effect"] or ""), link=link)

    def study(row: Mapping[str, Any]) -> TableCell:
        return TableCell(row["folder"], number(60 * row["hours"]) if row["hours"] else "") if "folder" in row else DASH

    shape = (
        (words("finding of a paper"), lambda row: TableCell(row["finding"], row["source"])),
        (words("testbed"), lambda row: row["testbed"]),
        (words("verdict"), lambda row: toned(row["verdict"], row["why"])),
        (words("our claim"), claim),
        (Head("effect", "95 % interval"), lambda row: TableCell(row.get("effect") or "–")),
        (Head("n", "seeds × prompts"), lambda row: TableCell(row.get("n") or "–")),
        (words("on other seeds"), again),
        (words("study", "minutes of its trials"), study),
    )
    data = pd.DataFrame(tested).drop(columns=[*TESTBEDS], errors="ignore")
    runs = [(row["verdict"], row["again_verdict"]) for row in tested if "again_verdict" in row and "claim" in row]
    ran, alone = sum("claim" in row for row in tested), sum("theirs" in row and "claim" in row for row in tested)
    return declared("findings", "Findings of papers", tested, shape, data, ran=ran, alone=alone, runs=repeated(runs))


def _differences() -> Table:
    """Show what each paper did, and what our test does otherwise."""
    heads = {"finding": "finding", "setting": "in the paper", "differs": "here"}
    shape = ((words(head), itemgetter(key)) for key, head in heads.items())
    return declared("differences", "What differs", findings(), shape, pd.DataFrame(findings())[["source", *heads]])


def _studies(every: Sequence[Mapping[str, Any]], root: Path, links: Mapping[str, str]) -> Table:
    """Show a row per published study: its question, and how often each verdict was given."""
    claims = {folder: list(own) for folder, own in groupby(every, itemgetter("folder"))}
    verdicts = {folder: _counted(one["verdict"] for one in own) for folder, own in claims.items()}
    data = list[dict[str, Any]]()
    seconds = {folder + AGAIN for folder in claims} & claims.keys()
    for folder in (one for one in claims if one not in seconds):
        question = yaml.safe_load((root / folder / f"published_{folder}.yaml").read_text("utf-8"))["question"]
        own = {"study": folder, "profile": claims[folder][0]["profile"], "question": question}
        data.append(own | {"verdicts": verdicts[folder], "again": verdicts.get(folder + AGAIN, "")})

    def again(row: Mapping[str, Any]) -> TableCell:
        return TableCell(row["again"], link=links[row["study"] + AGAIN]) if row["again"] else DASH

    shape = (
        (words("study"), lambda row: TableCell(row["study"], link=links[row["study"]])),
        (words("profile"), lambda row: row["profile"]),
        (words("question"), lambda row: row["question"]),
        (words("verdicts on its claims"), lambda row: row["verdicts"]),
        (words("on other seeds"), again),
    )
    twice = sum(len(claims[folder]) for folder in seconds)
    return declared("studies", "Studies", data, shape, data, claims=len(every) - twice, twice=twice)
