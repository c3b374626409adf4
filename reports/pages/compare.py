"""Several studies in one table: what their arms reached, at what drift and cost, and what became of their claims."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pipeline.run.layout import SAFE_NAME
from pipeline.run.metrics import METRICS
from reports.findings.findings import ArmResult, Findings
from reports.pages.page import Page, Part
from reports.records.load import StudyRecords
from reports.tables.cells import DASH, columns, sample, shown, size
from reports.tables.results import effect_word
from reports.tables.table import Head, Table, TableCell, plain
from reports.text.answer import answer
from reports.text.words import counted, listed, name, number
from studies.claims.falsifiers import OUTCOMES
from studies.definition.design import Cell as Trial

METRICS_SHOWN = (
    "eval/win_rate", "eval/win_rate_proxy", "eval/preference_accuracy", "eval/gold", "eval/kl_per_token",
    "eval/kl_per_sequence", "eval/perplexity_texts",
)  # fmt: skip
COSTS = {"cost/wall_s": Head("wall clock", "s per trial"), "cost/t4_s": Head("modelled T4", "s per trial")}


@dataclass(frozen=True)
class Compared:
    """One study of a comparison."""

    records: StudyRecords
    findings: Findings

    @property
    def label(self) -> str:
        study = self.records.study
        return study.name if self.records.profile == study.profile else f"{study.name} ({self.records.profile})"


def comparison(studies: Sequence[Compared]) -> Page:
    """The page that sets studies side by side."""
    names = [compared.label for compared in studies]
    trials = sum(len(compared.records.plan) for compared in studies)
    return Page(
        title=f"{listed(names)} compared",
        eyebrow=(
            f"{counted(len(studies), 'study', 'studies')} · {counted(sum(len(s.records.arms) for s in studies), 'arm')}"
            f" · {counted(trials, 'trial')} · designs {', '.join(compared.records.digest for compared in studies)}"
        ),
        lead=_lead(studies),
        caveats=tuple(_caveats(studies)),
        parts=(
            Part("arms", "All arms", (), (comparison_table(studies),)),
            Part(
                "answers",
                "What each study found",
                tuple(f"{s.label}: {answer(s.records, s.findings).sentence}" for s in studies),
            ),
        ),
    )


def summary(page: Page, studies: Sequence[Compared]) -> str:
    """The page for a terminal: the answer, its warnings, and of the table what each study was judged by."""
    (table,) = page.parts[0].tables
    shown_keys = {"eval/win_rate", "eval/kl_per_token", *(s.records.study.objective.metric for s in studies)}
    wanted = {"study", "arm", "n", "against its baseline", *map(name, shown_keys)}
    kept = [index for index, head in enumerate(table.heads) if head.text in wanted]
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    narrow = replace(table, heads=tuple(table.heads[index] for index in kept), rows=rows)
    return "\n".join([page.lead, *(f"Warning: {caveat}" for caveat in page.caveats), "", plain(narrow)])


def folder_name(studies: Sequence[Compared]) -> str:
    """Where a comparison of these studies lies: their names, or a digest where these are too long for a folder's
    name."""
    names = "+".join(f"{compared.records.study.name}-{compared.records.profile}" for compared in studies)
    return names if SAFE_NAME.fullmatch(names) else hashlib.sha256(names.encode()).hexdigest()[:16]


def comparison_table(studies: Sequence[Compared]) -> Table:
    """One row per arm of every study."""
    keys = [
        key
        for key in METRICS_SHOWN
        if any(key in result.estimates for compared in studies for result in compared.findings.arms)
    ]
    costs = [key for key in COSTS if any(key in compared.records.trials.columns for compared in studies)]
    heads = (
        Head("study", numeric=False), Head("arm", numeric=False), Head("n", "seeds × prompts"),
        *[Head(name(key), METRICS[key].unit.removeprefix("1")) for key in keys],
        Head("against its baseline", "on the study's objective", numeric=False),
        Head("claims", "trials", numeric=False),
        *[COSTS[key] for key in costs],
    )  # fmt: skip
    rows, data = [], []
    for compared in studies:
        for result in compared.findings.arms:
            cells, record = _row(compared, result, keys, costs)
            rows.append(cells)
            data.append(record)
    note = (
        "Means with 95 % intervals as on each study's own page; seeds and prompts in n. Against its baseline: the"
        " corrected finding on the objective of that study. Claims: trials of the arm by verdict. Cost: mean over ended"
        " trials, measured."
    )
    return Table("comparison", "Arms of all studies", note, heads, tuple(rows), pd.DataFrame(data))


def _row(
    compared: Compared, result: ArmResult, keys: list[str], costs: list[str]
) -> tuple[tuple[TableCell, ...], dict[str, Any]]:
    study = compared.records.study
    flags = [f"{n} {status}" for status, n in result.counts.items() if status != "complete"]
    biggest = max(result.estimates.values(), key=lambda estimate: estimate.prompts, default=None)
    baseline = result.arm == study.baseline
    effect = next((e for e in compared.findings.effects_on(study.objective.metric) if e.arm == result.arm), None)
    finding = "baseline" if baseline else effect_word(effect, study.objective.metric) if effect else "not estimable"
    claims = _claims(compared, result.arm)
    ended = compared.records.trials[
        (compared.records.trials["arm"] == result.arm) & ~compared.records.trials["status"].isin(["missing", "stale"])
    ]
    spent = {
        key: float(ended[key].astype(float).mean()) if key in ended.columns and len(ended) else float("nan")
        for key in costs
    }
    cells = (
        TableCell(compared.label), TableCell(result.arm), TableCell(size(biggest), ", ".join(flags)),
        *[shown(result.estimates.get(key), key) for key in keys],
        TableCell(finding, tone={"better": "good", "worse": "bad"}.get(finding, "")),
        TableCell(", ".join(f"{n} {outcome.lower()}" for outcome, n in claims.items() if n) or "–"),
        *[TableCell(number(value)) if value == value else DASH for value in spent.values()],
    )  # fmt: skip
    record: dict[str, Any] = {
        "study": study.name,
        "profile": compared.records.profile,
        "design": compared.records.digest,
        "arm": result.arm,
    }
    record |= {**sample(biggest), **{f"n_{status}": n for status, n in result.counts.items()}}
    for key in keys:
        record |= columns(key, result.estimates.get(key))
    record |= {
        "baseline": baseline,
        "finding": finding,
        **{f"claims_{o.lower().replace(' ', '_')}": n for o, n in claims.items()},
        **spent,
    }
    return cells, record


def _claims(compared: Compared, arm: str) -> dict[str, int]:
    verdicts = [v for claim in compared.findings.claims for v in claim.verdicts if v.arm == arm]
    return {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in OUTCOMES}


def _lead(studies: Sequence[Compared]) -> str:
    """The highest win rate of each study; which arm is best overall is not said, as arms of different studies are not
    paired here."""
    parts = []
    for compared in studies:
        ranked = [r for r in compared.findings.arms if "eval/win_rate" in r.estimates]
        if ranked:
            top = max(ranked, key=lambda result: result.estimates["eval/win_rate"].value)
            cell = shown(top.estimates["eval/win_rate"], "eval/win_rate")
            parts.append(
                f"{top.arm} in {compared.label} ({cell.text} {cell.detail}; {size(top.estimates['eval/win_rate'])})"
            )
    if not parts:
        return "No trial of these studies has been evaluated."
    apart = "Arms of different studies are not paired, so no difference between them is tested."
    return f"The highest win rate of each study: {listed(parts)}. {apart}"


SHARED = (
    ("prompts", "held-out prompts"),
    ("judge", "judges"),
    ("sft", "references"),
    ("reward", "training rewards"),
    ("reference", "answers of the reference"),
)


def _caveats(studies: Sequence[Compared]) -> list[str]:
    """Whether win rates of different studies mean the same."""
    caveats: list[str] = []
    for stage, what in SHARED:
        keys = {
            compared.label: sorted({str(e["key"]) for e in compared.records.upstream if e["stage"] == stage})
            for compared in studies
        }
        known = {label: own for label, own in keys.items() if own}
        if stage == "reference" and caveats:
            continue  # other prompts, references or rewards bring other answers with them
        if len({tuple(own) for own in known.values()}) > 1 or any(len(own) > 1 for own in known.values()):
            caveats.append(
                f"The studies do not share all {what} ({_groups(known)}): such numbers are not comparable from study to"
                " study."
            )
    sizes = {
        compared.label: str(
            sorted({cell.config.evaluate.prompts for cell in compared.records.plan if isinstance(cell, Trial)})
        )
        for compared in studies
    }
    if len(set(sizes.values())) > 1:
        said = "; ".join(f"{label} {n.strip('[]')}" for label, n in sizes.items())
        caveats.append(f"The studies were evaluated on different numbers of prompts: {said}.")
    return caveats


def _groups(keys: dict[str, list[str]]) -> str:
    return "; ".join(f"{label}: {', '.join(key[:8] for key in own)}" for label, own in keys.items())
