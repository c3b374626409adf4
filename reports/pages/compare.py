"""Several studies in one table: what their arms reached, at what drift and cost, and what became of their claims."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.run.layout import SAFE_NAME
from pipeline.run.metrics import METRICS
from reports.findings.findings import ArmResult, Findings
from reports.pages.page import rendered, replace_folder, write_text
from reports.records.load import StudyRecords
from reports.statistics.two_level import Estimate
from reports.tables.results import effect_word
from reports.tables.table import DASH, Head, Table, TableCell, columns, plain, sample, shown, size, write
from reports.text.answer import answer
from reports.text.say import say
from reports.text.words import name, number
from studies.claims.falsifiers import OUTCOMES
from studies.definition.design import Cell as Trial

METRICS_SHOWN = (
    "eval/win_rate", "eval/win_rate_proxy", "eval/preference_accuracy", "eval/gold", "eval/kl_per_token",
    "eval/kl_per_sequence", "eval/perplexity_texts",
)  # fmt: skip
WIN_RATE = "eval/win_rate"
SHARED = {
    "prompts": "held-out prompts",
    "judge": "judges",
    "sft": "references",
    "reward": "training rewards",
    "reference": "answers of the reference",
}
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


def compare_studies(studies: Sequence[Compared], root: Path) -> tuple[Path, str]:
    """Write the page that sets studies side by side, below `root`; returns its path, and the page for a terminal."""
    table = comparison_table(studies)
    values: dict[str, Any] = {
        "labels": [compared.label for compared in studies],
        "answers": {s.label: answer(s.records, s.findings).sentence for s in studies},
        "eyebrow": say("compare", "eyebrow", studies),
        "lead": say("compare", "lead", _highest(studies)),
        "caveats": _caveats(studies),
        "table": table,
    }

    def build(new: Path) -> None:
        write([table], new / "tables")
        write_text(new / "index.html", rendered("compare.html.j2", values))
        write_text(new / "index.md", rendered("compare.md.j2", values))

    folder = root / folder_name(studies)
    replace_folder(folder, build)
    lines = [
        values["lead"],
        *(f"Warning: {caveat}" for caveat in values["caveats"]),
        "",
        plain(_narrow(studies, table)),
    ]
    return folder / "index.html", "\n".join(lines)


def _narrow(studies: Sequence[Compared], table: Table) -> Table:
    """Of the table what each study was judged by."""
    metrics = {"eval/win_rate", "eval/kl_per_token", *(s.records.study.objective.metric for s in studies)}
    wanted = {"study", "arm", "n", "against its baseline", *map(name, metrics)}
    kept = [index for index, head in enumerate(table.heads) if head.text in wanted]
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return replace(table, heads=tuple(table.heads[index] for index in kept), rows=rows)


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


def _highest(studies: Sequence[Compared]) -> list[tuple[str, str, Estimate]]:
    """Study, arm and value of the highest win rate of each study."""
    found = []
    for compared in studies:
        rates = {one.arm: one.estimates[WIN_RATE] for one in compared.findings.arms if WIN_RATE in one.estimates}
        if rates:
            top = max(rates, key=lambda arm: rates[arm].value)
            found.append((compared.label, top, rates[top]))
    return found


def _caveats(studies: Sequence[Compared]) -> list[str]:
    """Reasons why numbers of different studies do not mean the same."""
    caveats: list[str] = []
    for stage in SHARED:
        keys = {
            compared.label: sorted({str(e["key"]) for e in compared.records.upstream if e["stage"] == stage})
            for compared in studies
        }
        known = {label: own for label, own in keys.items() if own}
        if stage == "reference" and caveats:
            continue  # other prompts, references or rewards bring other answers with them
        if len({tuple(own) for own in known.values()}) > 1 or any(len(own) > 1 for own in known.values()):
            caveats.append(say("compare", "not_shared", SHARED[stage], known))
    sizes = {
        compared.label: sorted({c.config.evaluate.prompts for c in compared.records.plan if isinstance(c, Trial)})
        for compared in studies
    }
    if len(set(map(tuple, sizes.values()))) > 1:
        caveats.append(say("compare", "sizes", sizes))
    return caveats
