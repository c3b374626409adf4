"""Several studies in one table: results of their arms, drift and cost, and the outcomes of their claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.run.layout import StudyFolder
from pipeline.run.metrics import METRICS, scores_as_logged
from reports.findings.findings import ArmResult, Findings, analyse
from reports.pages.page import rendered, replace_folder, write_text
from reports.records.load import StudyRecords, load_records
from reports.tables.results import effect_word
from reports.tables.table import (
    Head,
    Table,
    TableCell,
    columns,
    declared,
    plain,
    sample,
    shown,
    size,
    toned,
    write,
)
from reports.tables.table import words as head
from reports.text.answer import answer
from reports.text.say import say
from reports.text.words import name, number
from studies.claims.falsifiers import OUTCOMES
from studies.definition.schema import Study

WIN_RATE = "eval/win_rate"
METRICS_SHOWN = (
    WIN_RATE, "eval/win_rate_proxy", "eval/preference_accuracy", "eval/gold", "eval/kl_per_token",
    "eval/kl_per_sequence", "eval/perplexity_texts",
)  # fmt: skip
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

    def finding(self, arm: str) -> str:
        """The corrected finding on the study's objective."""
        study = self.records.study
        effect = next((one for one in self.findings.effects_on(study.objective.metric) if one.arm == arm), None)
        return "baseline" if arm == study.baseline else effect_word(effect, study.objective.metric) if effect else "–"

    @property
    def outcomes(self) -> dict[tuple[str, str, str], str]:
        """Study, name and condition of each hypothesis and falsifier -> its verdict."""
        name, found = self.records.study.name, dict[tuple[str, str, str], str]()
        for one in self.findings.hypotheses:
            found[name, one.hypothesis.name, one.hypothesis.condition] = one.outcome
        for claim in self.findings.claims:
            found[name, claim.falsifier.name, claim.falsifier.condition] = claim.outcome
        return found

    def claims(self, arm: str) -> dict[str, int]:
        """Count the verdicts on an arm's trials."""
        found = [one.outcome for claim in self.findings.claims for one in claim.verdicts if one.arm == arm]
        return {outcome: found.count(outcome) for outcome in OUTCOMES}


def compare(found: Sequence[tuple[StudyFolder, Study]], root: Path) -> tuple[Path, str]:
    """Compare recorded studies as `compare_studies` does. Raises `UserError` for one that is given twice, and what
    `load_records` does."""
    for at, (folder, study) in enumerate(found):
        if folder.path in [other.path for other, _ in found[:at]]:
            raise UserError(f"compare: the study '{study.argument}' is given twice; name different ones")
    loaded = [load_records(folder, study) for folder, study in found]
    with scores_as_logged(any(study.foreign for _, study in found)):
        return compare_studies([Compared(records, analyse(records)) for records in loaded], root)


def compare_studies(studies: Sequence[Compared], root: Path) -> tuple[Path, str]:
    """Write the page that sets studies side by side, below `root`; return its path, and the page for a terminal."""
    table, both = comparison_table(studies), verdicts_table(studies)
    rates = [(s.label, one.arm, one.estimates.get(WIN_RATE)) for s in studies for one in s.findings.arms]
    rates.sort(key=lambda one: one[2].value if one[2] else -1.0)
    best = {label: (label, arm, rate) for label, arm, rate in rates}
    values: dict[str, Any] = {
        "labels": [compared.label for compared in studies],
        "answers": {s.label: answer(s.records, s.findings).sentence for s in studies},
        "eyebrow": say("compare", "eyebrow", studies),
        "lead": say("compare", "lead", [best[s.label] for s in studies if s.label in best and best[s.label][2]]),
        "caveats": _caveats(studies),
        "table": table,
        "verdicts": both,
    }

    def build(new: Path) -> None:
        write([table, *([both] if both.rows else [])], new / "tables")
        write_text(new / "index.html", rendered("compare.html.j2", values))
        write_text(new / "index.md", rendered("compare.md.j2", values))

    folder = root / "+".join(f"{compared.records.study.name}-{compared.records.profile}" for compared in studies)
    replace_folder(folder, build)
    metrics = {WIN_RATE, "eval/kl_per_token", *(s.records.study.objective.metric for s in studies)}
    wanted = {"study", "arm", "n", "against its baseline", *map(name, metrics)}
    kept = [place for place, one in enumerate(table.heads) if one.text in wanted]
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    narrow = replace(table, heads=tuple(table.heads[place] for place in kept), rows=rows)
    warnings = [f"Warning: {caveat}" for caveat in values["caveats"]]
    parts = [values["lead"], *warnings, "", plain(narrow), *(["", plain(both)] if both.rows else [])]
    return folder / "index.html", "\n".join(parts)


def agreement(outcomes: Sequence[str]) -> str:
    """Compare the verdicts on one claim.

    >>> agreement(["SUPPORTED", "SUPPORTED"]), agreement(["SUPPORTED", "REFUTED"]), agreement(["REFUTED", "UNDECIDED"])
    ('same verdict', 'other verdict', 'undecided')
    """
    if any(outcome in ("UNDECIDED", "NOT TESTED") for outcome in outcomes):
        return "undecided"
    return "same verdict" if len(set(outcomes)) == 1 else "other verdict"


def verdicts_table(studies: Sequence[Compared]) -> Table:
    """Show a row per hypothesis and falsifier of a study on several profiles: its verdicts, and whether they agree."""
    claims = dict.fromkeys(claim for compared in studies for claim in compared.outcomes)
    found = {claim: {s.label: s.outcomes[claim] for s in studies if claim in s.outcomes} for claim in claims}
    rows = [
        (*claim[1:], verdicts, agreement([*verdicts.values()]))
        for claim, verdicts in found.items()
        if len(verdicts) > 1
    ]

    shape = (
        (head("claim"), lambda row: TableCell(row[0], row[1])),
        *[(head(s.label), lambda row, label=s.label: toned(row[2].get(label, "–"))) for s in studies],
        (head("together"), lambda row: row[3]),
    )
    data = [{"claim": name, "condition": words, **each, "together": both} for name, words, each, both in rows]
    return declared("verdicts_compared", "Verdicts on the same claims", rows, shape, data)


def comparison_table(studies: Sequence[Compared]) -> Table:
    """Show a row per arm of every study."""
    rows = [(compared, result) for compared in studies for result in compared.findings.arms]
    keys = [key for key in METRICS_SHOWN if any(key in result.estimates for _, result in rows)]
    units = {key: METRICS[key].unit.removeprefix("1") for key in keys}
    costs = [key for key in COSTS if any(key in compared.records.trials.columns for compared in studies)]

    def biggest(result: ArmResult) -> Any:
        return max(result.estimates.values(), key=lambda estimate: estimate.prompts, default=None)

    def claims(row: tuple[Compared, ArmResult]) -> str:
        counts = row[0].claims(row[1].arm)
        return ", ".join(f"{n} {outcome.lower()}" for outcome, n in counts.items() if n) or "–"

    shape = (
        (head("study"), lambda row: row[0].label),
        (head("arm"), lambda row: row[1].arm),
        (Head("n", "seeds × prompts"), lambda row: TableCell(size(biggest(row[1])), row[1].flags)),
        *[(Head(name(key), units[key]), lambda row, key=key: shown(row[1].estimates.get(key), key)) for key in keys],
        (head("against its baseline", "on the study's objective"), lambda row: toned(row[0].finding(row[1].arm))),
        (head("claims", "trials"), claims),
        *[(COSTS[key], lambda row, key=key: number(row[0].records.cost(row[1].arm, key))) for key in costs],
    )
    data = [
        {"study": s.records.study.name, "profile": s.records.profile, "design": s.records.digest, "arm": result.arm}
        | {**sample(biggest(result)), **{f"n_{status}": n for status, n in result.counts.items()}}
        | {column: value for key in keys for column, value in columns(key, result.estimates.get(key)).items()}
        | {"baseline": result.arm == s.records.study.baseline, "finding": s.finding(result.arm)}
        | {f"claims_{one.lower().replace(' ', '_')}": n for one, n in s.claims(result.arm).items()}
        | {key: s.records.cost(result.arm, key) for key in costs}
        for s, result in rows
    ]
    return declared("comparison", "Arms of all studies", rows, shape, data)


def _caveats(studies: Sequence[Compared]) -> list[str]:
    """Reasons why numbers of different studies do not mean the same."""
    caveats: list[str] = []
    for stage, things in SHARED.items():
        keys = {s.label: sorted({str(e["key"]) for e in s.records.upstream if e["stage"] == stage}) for s in studies}
        known = {label: own for label, own in keys.items() if own}
        if stage == "reference" and caveats:
            continue  # other prompts, references or rewards bring other answers with them
        if len({tuple(own) for own in known.values()}) > 1 or any(len(own) > 1 for own in known.values()):
            caveats.append(say("compare", "not_shared", things, known))
    sizes = {s.label: sorted({one.evaluate.prompts for one in s.records.configs.values()}) for s in studies}
    return caveats + ([say("compare", "sizes", sizes)] if len(set(map(tuple, sizes.values()))) > 1 else [])
