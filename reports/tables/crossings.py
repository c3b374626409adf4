"""The table of crossed knobs: what one knob changes at each level of another, and where the effects do not add up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.crossings import Contrast, Crossed
from reports.findings.findings import Findings, once
from reports.records.load import StudyRecords
from reports.statistics.two_level import ALPHA
from reports.tables.cells import columns, sample, shown_difference, size
from reports.tables.table import Head, Table, TableCell
from reports.text.crossings import at
from reports.text.words import name, p_value, setting
from studies.definition.hypotheses import expression


def crossings_table(records: StudyRecords, findings: Findings) -> Table:
    """Simple effects and interactions of every pair of crossed knobs, on the objective."""
    metric = records.study.objective.metric
    heads = (
        Head("change", numeric=False), Head("at", numeric=False), Head("kind", numeric=False),
        Head("difference", "95 % interval"), Head("n", "seeds × prompts"), Head("p"), Head("p, Holm"),
        Head("finding", numeric=False),
    )  # fmt: skip
    rows = tuple(row for found in findings.crossings for row in _rows(found, metric))
    data = [row for found in findings.crossings for row in _data(found, metric)]
    unit = "" if METRICS[metric].unit in ("fraction", "1") else f" [{METRICS[metric].unit}]"
    note = (
        f"Differences in {name(metric)}{unit}; everything else as in {records.baseline}. Simple effect: a knob's value"
        " minus its value in the baseline, at one level of the other knob. Interaction: cell − row − column + baseline;"
        f" 0 where the effects add up. Paired by {'seed' if once(records, metric) else 'seed and prompt'}. p:"
        " two-sided, for new seeds and prompts; p, Holm: corrected over the simple effects of one pair of knobs, and"
        " apart from them over its interactions. A finding needs p, Holm below"
        f" {ALPHA:g} and an interval without 0."
    )
    return Table("crossings", "Crossed knobs", note, heads, rows, pd.DataFrame(data))


def _rows(found: Crossed, metric: str) -> list[tuple[TableCell, ...]]:
    crossing = found.crossing
    simple = [
        (
            TableCell(f"{at(one.knob, one.value)} instead of {setting(one.base)}"),
            TableCell(at(one.other, one.level)),
            TableCell("simple effect"),
            *_tested(one.contrast, metric),
        )
        for one in found.effects
    ]
    return simple + [
        (
            TableCell(f"{at(crossing.rows, one.row)} with {at(crossing.columns, one.column)}"),
            TableCell("–"),
            TableCell("interaction"),
            *_tested(one.contrast, metric),
        )
        for one in found.interactions
    ]


def _tested(one: Contrast, metric: str) -> tuple[TableCell, ...]:
    return (
        shown_difference(one.estimate, metric),
        TableCell(size(one.estimate)),
        TableCell(p_value(one.p)),
        TableCell(p_value(one.p_holm)),
        TableCell(_finding(one)),
    )


def _finding(one: Contrast) -> str:
    if one.estimate is None or one.p_holm is None:
        return "not estimable" if one.estimate is None else "not tested"
    if not one.differs:
        return "not distinguishable from 0"
    return "above 0" if one.estimate.value > 0 else "below 0"


def _data(found: Crossed, metric: str) -> list[dict[str, Any]]:
    crossing = found.crossing
    rows = [
        _record("simple effect", (one.knob, one.value, one.base), (one.other, one.level, one.level), one.contrast)
        for one in found.effects
    ]
    rows += [
        _record(
            "interaction",
            (crossing.rows, one.row, crossing.baseline[0]),
            (crossing.columns, one.column, crossing.baseline[1]),
            one.contrast,
        )
        for one in found.interactions
    ]
    return [{"metric": metric, "unit": METRICS[metric].unit, **row} for row in rows]


def _record(kind: str, knob: tuple[str, Any, Any], other: tuple[str, Any, Any], one: Contrast) -> dict[str, Any]:
    named = {"kind": kind, "contrast": expression(one.weights)}
    named |= dict(zip(("knob", "value", "instead_of"), knob, strict=True))
    named |= dict(zip(("other_knob", "other_value", "other_instead_of"), other, strict=True))
    tests = {"p": one.p, "p_holm": one.p_holm, "finding": _finding(one)}
    return {**named, **columns("difference", one.estimate), **sample(one.estimate), **tests}
