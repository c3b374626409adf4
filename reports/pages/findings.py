"""Findings of papers beside what the published studies found: one page, one table, one figure.

`papers.yaml` names for each finding the claim that tests it on each testbed. All numbers are read from the published
folders, which `ablate publish` writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from reports.figures.papers import TESTBEDS, papers, predicted
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
    "UNDECIDED": "UNDECIDED", "NOT TESTED": "UNDECIDED",
}  # fmt: skip
"""Verdict on a finding, by that on the claim of ours which states it."""
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


def published_hours() -> float:
    """Hours that the trials of these studies took when they were published; those of which that is known."""
    files = [path for name in folders() if (path := EXAMPLE / name / CLAIMS).exists()]
    return float(sum(pd.read_csv(path, sep="\t")["hours"].fillna(0.0).iloc[0] for path in files))


def write_index(root: Path, pages: Mapping[str, str] | None = None) -> Path:
    """Write the findings of papers, with a figure, and the studies that are published below `root`, as Markdown; return
    the page. With `pages`, links from folders to the full pages of their studies, it is also written as HTML, which is
    returned, with its table for programs."""
    tables = [pd.read_csv(path, sep="\t").assign(folder=path.parent.name) for path in sorted(root.glob(f"*/{CLAIMS}"))]
    rows = pd.concat(tables).astype(object)
    rows = rows.where(rows.notna(), None)
    every: list[dict[str, Any]] = rows.to_dict("records")  # type: ignore[assignment]
    tested = list(_tested(every))
    table = _table(tested)
    with house_style():
        figure = papers(tested)
        if figure:
            figure.figure.savefig(root / "findings.png", dpi=PNG_DPI, metadata={"Software": None})
    shown: dict[str, Any] = {
        "table": table,
        "figure": figure,
        "studies": list(_studies(rows, root)),
        "claims": len(rows),
        "missing": [name for name in study_names() if name not in set(rows["study"])],
        "verdicts": _counted(one["verdict"] for one in tested),
        "papers": findings(),
        "pages": pages or {},
    }
    write_text(root / "README.md", rendered("findings.md.j2", shown))
    if pages is None:
        return root / "README.md"
    write([table], root / "tables")
    write_text(root / "index.html", rendered("findings.html.j2", shown))
    return root / "index.html"


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
            again = {f"again_{key}": same[key] for key in ("effect", "estimate")} if same else {}
            again |= {"again_verdict": _verdict(same, theirs)} if same else {}
            verdict = verdict if why else _verdict(found, theirs)
            yield {**found, **theirs, **again, **one, "testbed": bed, "verdict": verdict, "why": why}


def _studies(rows: pd.DataFrame, root: Path) -> Iterator[dict[str, Any]]:
    """Yield a row per published study: its folder, profile and question, and how often each verdict was given."""
    for folder, own in rows.groupby("folder"):
        study = yaml.safe_load((root / str(folder) / f"published_{folder}.yaml").read_text("utf-8"))
        shown = {"folder": folder, "profile": own["profile"].iloc[0], "question": study["question"]}
        yield {**shown, "verdicts": _counted(own["verdict"])}


def _counted(verdicts: Iterable[str]) -> str:
    """``SUPPORTED: 3, UNDECIDED: 1``, the most frequent first."""
    return ", ".join(f"{verdict}: {n}" for verdict, n in Counter(verdicts).most_common())


def _verdict(found: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Our own verdict, where our claim states the finding; else what the 95 % interval shows of the paper's."""
    if "verdict" not in found:
        return "NOT RUN"
    if not theirs:
        return VERDICTS[found["verdict"]]
    low, high = found["estimate_low"], found["estimate_high"]
    if low is None or high is None or found["verdict"] == "NOT TESTED":
        return "UNDECIDED"
    least, most = predicted(**theirs)
    return "REPRODUCED" if least <= low and high <= most else "REFUTED" if high < least or most < low else "UNDECIDED"


def _claim(row: Mapping[str, Any]) -> TableCell:
    if not row.get("claim"):
        return DASH
    return TableCell(row["claim"], row["folder"] + "; the verdict is on the paper's prediction" * ("theirs" in row))


def _again(row: Mapping[str, Any]) -> TableCell:
    return toned(row["again_verdict"], row["again_effect"]) if "again_verdict" in row else DASH


def _table(tested: list[dict[str, Any]]) -> Table:
    """Show a row per finding and testbed."""
    shape = (
        (words("finding of a paper"), lambda row: TableCell(row["finding"], row["source"])),
        (words("testbed"), lambda row: row["testbed"]),
        (words("verdict"), lambda row: toned(row["verdict"], row["why"])),
        (words("our claim"), _claim),
        (Head("effect", "95 % interval"), lambda row: TableCell(row.get("effect") or "–")),
        (Head("n", "seeds × prompts"), lambda row: TableCell(row.get("n") or "–")),
        (words("on other seeds"), _again),
        (Head("cost", "hours of the study"), lambda row: number(row["hours"]) if row.get("hours") else DASH),
    )
    data = pd.DataFrame(tested).drop(columns=[*TESTBEDS], errors="ignore")
    repeated = [row["again_verdict"] == row["verdict"] for row in tested if "again_verdict" in row]
    kept = f"{sum(repeated)} of {len(repeated)}"
    return declared("findings", "Findings of papers", tested, shape, data, kept=kept)
