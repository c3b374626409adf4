"""The table of trials whose series left their healthy bands."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.run.symptoms import in_percent
from reports.tables.table import DASH, Head, Table, TableCell, declared, words
from reports.text.phrases import health_sentence
from studies.claims.symptoms import ArmHealth

_NAMES = (
    "arm", "seed", "series", "side", "bound", "outside", "records", "share", "late", "first_step", "cause", "knob",
)  # fmt: skip


def health_table(arms: Sequence[ArmHealth]) -> Table:
    """Show every arm: its unhealthy trials, and the series that was outside its band for the largest share of a
    trial."""
    data = [
        (one.arm, seed, s.key, s.side, s.bound, s.outside, s.n, s.share, s.late, s.first, s.cause, s.knob)
        for one in arms
        for seed, found in one.unhealthy.items()
        for s in found
    ]

    def count(one: ArmHealth) -> TableCell:
        return TableCell(f"{one.ill} of {one.judged}", f"{len(one.diverged)} diverged" if one.diverged else "")

    def worst(one: ArmHealth) -> TableCell:
        return (
            TableCell(one.worst[1].condition, f"also {', '.join(one.others)}" if one.others else "")
            if one.worst
            else TableCell("none")
        )

    def share(one: ArmHealth) -> TableCell:
        if one.worst is None:
            return DASH
        seed, symptom = one.worst
        return TableCell(f"{in_percent(symptom.share)} %", f"{symptom.outside:,} of {symptom.span}, seed {seed}")

    shape = (
        (words("arm"), lambda one: one.arm),
        (Head("unhealthy", "trials"), count),
        (words("outside its band"), worst),
        (Head("share", "of the records"), share),
        (Head("first at", "gradient step"), lambda one: f"{one.worst[1].first:,}" if one.worst else DASH),
        (words("likely cause"), lambda one: one.worst[1].cause if one.worst else DASH),
        (words("setting to change"), lambda one: (one.worst[1].knob or DASH) if one.worst else DASH),
    )
    rows = [dict(zip(_NAMES, row, strict=True)) for row in data]
    note = {"sentence": health_sentence(arms), "unhealthy": any(one.unhealthy for one in arms)}
    return declared("health", "Health of the trials", arms, shape, rows, list(_NAMES), **note)
