"""The table of hypotheses and claims, as written down before the data, with their verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.run.metrics import METRICS
from reports.findings.findings import Claim, Findings
from reports.findings.hypotheses import Judgement
from reports.records.load import StudyRecords
from reports.tables.table import (
    DASH,
    Head,
    Table,
    TableCell,
    columns,
    declared,
    sample,
    shown_difference,
    size,
    toned,
    words,
)
from reports.text.words import p_value
from studies.definition.hypotheses import expression

_COLUMNS = [
    "kind", "name", "claim", "condition", "badge", "outcome", "contrast", "estimate", "estimate_low", "estimate_high",
    "p", "p_holm", "seeds", "prompts", "method", "trials",
]  # fmt: skip
_HEADS = (
    words("name"), words("claim"), words("verdict"), Head("estimate", "95 % interval"), Head("p", "Holm"),
    Head("n", "seeds × prompts"), words("written down"),
)  # fmt: skip


def claims_table(records: StudyRecords, findings: Findings) -> Table:
    """Show a row per hypothesis and falsifier; the CSV has a row per contrast."""
    badges = records.standing.hypotheses | records.standing.falsifiers
    rows = [(*_hypothesis(one), TableCell(str(badges[one.hypothesis.name]))) for one in findings.hypotheses]
    rows += [(*_falsifier(one), TableCell(str(badges[one.falsifier.name]))) for one in findings.claims]
    data = [row | {"badge": str(badges[row["name"]])} for row in _data(findings)]
    shape = [(head, lambda row, at=at: row[at]) for at, head in enumerate(_HEADS)]
    return declared("claims", "Verdicts on hypotheses and claims", rows, shape, data, _COLUMNS)


def _hypothesis(one: Judgement) -> tuple[TableCell, ...]:
    step, hypothesis = one.deciding, one.hypothesis
    estimate, unit = shown_difference(step.estimate, hypothesis.metric), METRICS[hypothesis.metric].unit
    contrast = expression(step.weights) if len(one.steps) > 1 else ""
    details = (estimate.detail, "" if unit in ("1", "fraction") else unit, contrast) if estimate.detail else ()
    return (
        TableCell(hypothesis.name),
        TableCell(hypothesis.claim, hypothesis.condition),
        toned(one.outcome, one.reason),
        TableCell(estimate.text, ", ".join(filter(None, details))),
        TableCell(p_value(one.p), "" if one.p_holm is None else p_value(one.p_holm)),
        TableCell(size(step.estimate)),
    )


def _falsifier(claim: Claim) -> tuple[TableCell, ...]:
    fell = sum(verdict.outcome == "FALSIFIED" for verdict in claim.verdicts)
    return (
        TableCell(claim.falsifier.name),
        TableCell(claim.falsifier.claim, f"refuted by {claim.falsifier.condition}"),
        toned(claim.outcome, f"refuted in {fell} of {len(claim.verdicts)} trials"),
        DASH,
        DASH,
        TableCell(f"{len(claim.verdicts)} trials"),
    )


def _data(findings: Findings) -> Iterator[dict[str, Any]]:
    for one in findings.hypotheses:
        head = {"kind": "hypothesis", **{key: getattr(one.hypothesis, key) for key in ("name", "claim", "condition")}}
        for step in one.steps:
            contrast = expression(step.weights) + " at equal KL" * one.hypothesis.at_equal_kl
            tests = {"outcome": one.outcome, "contrast": contrast, "p": step.p, "p_holm": one.p_holm}
            yield {**head, **tests, **columns("estimate", step.estimate), **sample(step.estimate)}
    for claim in findings.claims:
        head = {"kind": "falsifier", **{key: getattr(claim.falsifier, key) for key in ("name", "claim", "condition")}}
        yield {**head, "outcome": claim.outcome, "trials": len(claim.verdicts)}
