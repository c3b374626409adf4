"""The table of crossed knobs: effects of one knob at each level of another, and where they do not add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.run.metrics import METRICS
from reports.findings.crossings import Contrast, Crossed
from reports.findings.findings import Findings, once
from reports.records.load import StudyRecords
from reports.tables.table import Head, Table, columns, declared, sample, shown_difference, size, words
from reports.text.words import at, p_value, setting
from studies.definition.hypotheses import expression


@dataclass(frozen=True)
class _Row:
    kind: str
    change: str
    at: str
    knob: tuple[str, Any, Any]
    """A knob's name, its value and the value that it replaces."""
    other: tuple[str, Any, Any]
    contrast: Contrast


def crossings_table(records: StudyRecords, findings: Findings) -> Table:
    """Show simple effects and interactions of every pair of crossed knobs, on the objective."""
    metric = records.study.objective.metric
    rows = [row for found in findings.crossings for row in _rows(found)]
    shape = (
        (words("change"), lambda row: row.change),
        (words("at"), lambda row: row.at),
        (words("kind"), lambda row: row.kind),
        (Head("difference", "95 % interval"), lambda row: shown_difference(row.contrast.estimate, metric)),
        (Head("n", "seeds × prompts"), lambda row: size(row.contrast.estimate)),
        (Head("p"), lambda row: p_value(row.contrast.p)),
        (Head("p, Holm"), lambda row: p_value(row.contrast.p_holm)),
        (words("finding"), lambda row: _finding(row.contrast)),
    )
    head = {"metric": metric, "unit": METRICS[metric].unit}
    values: dict[str, Any] = {"metric": metric, "baseline": records.baseline, "once": once(records, metric)}
    return declared("crossings", "Crossed knobs", rows, shape, [head | _record(row) for row in rows], **values)


def _rows(found: Crossed) -> Iterator[_Row]:
    crossing = found.crossing
    for one in found.effects:
        change = f"{at(one.knob, one.value)} instead of {setting(one.base)}"
        knobs = (one.knob, one.value, one.base), (one.other, one.level, one.level)
        yield _Row("simple effect", change, at(one.other, one.level), *knobs, one.contrast)
    for cell in found.interactions:
        change = f"{at(crossing.rows, cell.row)} with {at(crossing.columns, cell.column)}"
        knobs = (crossing.rows, cell.row, crossing.baseline[0]), (crossing.columns, cell.column, crossing.baseline[1])
        yield _Row("interaction", change, "–", *knobs, cell.contrast)


def _finding(one: Contrast) -> str:
    if one.estimate is None or one.p_holm is None:
        return "not estimable" if one.estimate is None else "not tested"
    if not one.differs:
        return "not distinguishable from 0"
    return "above 0" if one.estimate.value > 0 else "below 0"


def _record(row: _Row) -> dict[str, Any]:
    one = row.contrast
    record: dict[str, Any] = {"kind": row.kind, "contrast": expression(one.weights)}
    record |= dict(zip(("knob", "value", "instead_of"), row.knob, strict=True))
    record |= dict(zip(("other_knob", "other_value", "other_instead_of"), row.other, strict=True))
    record |= columns("difference", one.estimate) | sample(one.estimate)
    return record | {"p": one.p, "p_holm": one.p_holm, "finding": _finding(one)}
