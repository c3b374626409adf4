"""The table of hypotheses and claims: what was said before the data, and what became of it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.findings import Claim, Findings
from reports.findings.hypotheses import Judgement
from reports.records.load import StudyRecords
from reports.statistics.two_level import ALPHA
from reports.tables.cells import DASH, columns, sample, shown_difference, size
from reports.tables.table import Head, Table, TableCell
from reports.text.words import p_value
from studies.claims.badges import Badge
from studies.definition.hypotheses import expression

_COLUMNS = [
    "kind", "name", "claim", "condition", "badge", "outcome", "contrast", "estimate", "estimate_low", "estimate_high",
    "p", "p_holm", "seeds", "prompts", "method", "trials",
]  # fmt: skip
_TONES = {"SUPPORTED": "good", "SURVIVED": "good", "REFUTED": "bad", "FALSIFIED": "bad"}


def claims_table(records: StudyRecords, findings: Findings) -> Table:
    """One row per hypothesis and falsifier; in the CSV one per contrast."""
    heads = (
        Head("name", numeric=False), Head("claim", numeric=False), Head("verdict", numeric=False),
        Head("estimate", "95 % interval"), Head("p", "Holm"), Head("n", "seeds × prompts"),
        Head("written down", numeric=False),
    )  # fmt: skip
    standing = records.standing
    rows = [_hypothesis(one, standing.hypotheses[one.hypothesis.name]) for one in findings.hypotheses]
    rows += [_falsifier(claim, standing.falsifiers[claim.falsifier.name]) for claim in findings.claims]
    data = [row for one in findings.hypotheses for row in _data(one, standing.hypotheses[one.hypothesis.name])]
    data += [_claim_data(claim, standing.falsifiers[claim.falsifier.name]) for claim in findings.claims]
    note = (
        "A hypothesis is supported where the estimate is as expected, and refuted where it is not, if Holm's p is below"
        f" {ALPHA:g}; undecided otherwise. p: two-sided, of a difference at the bound; of equality, that of the"
        " equivalence test. Holm's p, below it, is corrected over the study's hypotheses. An order has the largest p"
        " of its steps, or the smallest of those that are not as expected, times the number of steps; the estimate of"
        " that step is shown."
    )
    return Table(
        "claims",
        "What was claimed, and what became of it",
        note,
        heads,
        tuple(rows),
        pd.DataFrame(data, columns=_COLUMNS),
    )


def _hypothesis(one: Judgement, badge: Badge) -> tuple[TableCell, ...]:
    step, hypothesis = one.deciding, one.hypothesis
    estimate = shown_difference(step.estimate, hypothesis.metric)
    return (
        TableCell(hypothesis.name),
        TableCell(hypothesis.claim, hypothesis.condition),
        TableCell(one.outcome, one.reason, _TONES.get(one.outcome, "")),
        TableCell(estimate.text, _details(one, estimate.detail)),
        TableCell(p_value(one.p), "" if one.p_holm is None else p_value(one.p_holm)),
        TableCell(size(step.estimate)),
        TableCell(str(badge)),
    )


def _details(one: Judgement, bounds: str) -> str:
    """The interval, with its unit, and of an order with the contrast."""
    unit = METRICS[one.hypothesis.metric].unit
    which = expression(one.deciding.weights) if len(one.steps) > 1 else ""
    return ", ".join(filter(None, [bounds, "" if unit in ("1", "fraction") else unit, which])) if bounds else ""


def _falsifier(claim: Claim, badge: Badge) -> tuple[TableCell, ...]:
    fell = sum(verdict.outcome == "FALSIFIED" for verdict in claim.verdicts)
    return (
        TableCell(claim.falsifier.name),
        TableCell(claim.falsifier.claim, f"refuted by {claim.falsifier.condition}"),
        TableCell(claim.outcome, f"refuted in {fell} of {len(claim.verdicts)} trials", _TONES.get(claim.outcome, "")),
        DASH,
        DASH,
        TableCell(f"{len(claim.verdicts)} trials"),
        TableCell(str(badge)),
    )


def _data(one: Judgement, badge: Badge) -> list[dict[str, Any]]:
    return [
        {
            "kind": "hypothesis",
            "name": one.hypothesis.name,
            "claim": one.hypothesis.claim,
            "condition": one.hypothesis.condition,
            "badge": str(badge),
            "outcome": one.outcome,
            "contrast": expression(step.weights),
            **columns("estimate", step.estimate),
            "p": step.p,
            "p_holm": one.p_holm,
            **sample(step.estimate),
        }
        for step in one.steps
    ]


def _claim_data(claim: Claim, badge: Badge) -> dict[str, Any]:
    falsifier = claim.falsifier
    return {
        "kind": "falsifier",
        "name": falsifier.name,
        "claim": falsifier.claim,
        "condition": falsifier.condition,
        "badge": str(badge),
        "outcome": claim.outcome,
        "trials": len(claim.verdicts),
    }
