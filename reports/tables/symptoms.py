"""The table of trials whose series left their healthy bands."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pipeline.run.symptoms import in_percent
from reports.tables.cells import DASH
from reports.tables.table import Head, Table, TableCell
from reports.text.symptoms import health_sentence
from studies.claims.symptoms import ArmHealth

_NAMES = (
    "arm",
    "seed",
    "series",
    "side",
    "bound",
    "outside",
    "records",
    "share",
    "late",
    "first_step",
    "cause",
    "knob",
)


def health_table(arms: Sequence[ArmHealth]) -> Table:
    """Every arm: its unhealthy trials, and the series that was outside its band for the largest share of a trial."""
    heads = (
        Head("arm", numeric=False), Head("unhealthy", "trials"), Head("outside its band", numeric=False),
        Head("share", "of the records"), Head("first at", "gradient step"), Head("likely cause", numeric=False),
        Head("setting to change", numeric=False),
    )  # fmt: skip
    data = [
        (one.arm, seed, s.key, s.side, s.bound, s.outside, s.n, s.share, s.late, s.first, s.cause, s.knob)
        for one in arms
        for seed, found in one.unhealthy.items()
        for s in found
    ]
    shown = (
        " Shown: of each arm the series with the largest share, in the trial named. Small print: other series that left"
        " their band in some trial of the arm."
    )
    note = (
        f"{health_sentence(arms)}{shown if any(one.unhealthy for one in arms) else ''} A band is a warning, not a"
        " verdict: an arm can leave one and win. The glossary gives the bands; the CSV holds every symptom of every"
        " trial."
    )
    frame = pd.DataFrame(data, columns=list(_NAMES))
    return Table("health", "Health of the trials", note, heads, tuple(_row(one) for one in arms), frame)


def _row(one: ArmHealth) -> tuple[TableCell, ...]:
    count = TableCell(f"{one.ill} of {one.judged}", f"{len(one.diverged)} diverged" if one.diverged else "")
    if one.worst is None:
        return TableCell(one.arm), count, TableCell("none"), DASH, DASH, DASH, DASH
    seed, symptom = one.worst
    return (
        TableCell(one.arm),
        count,
        TableCell(symptom.condition, f"also {', '.join(one.others)}" if one.others else ""),
        TableCell(f"{in_percent(symptom.share)} %", f"{symptom.outside:,} of {symptom.span}, seed {seed}"),
        TableCell(f"{symptom.first:,}"),
        TableCell(symptom.cause),
        TableCell(symptom.knob) if symptom.knob else DASH,
    )
