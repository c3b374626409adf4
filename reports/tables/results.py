"""The tables of results: every arm, its effect against the baseline with its certainty, verdicts, and how trials
ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.run.metrics import METRICS
from reports.findings.findings import ENDS, ArmResult, Effect, Findings, once
from reports.findings.pairs import parts
from reports.records.load import STATUSES, StudyRecords
from reports.tables.claims import claims_table
from reports.tables.crossings import crossings_table
from reports.tables.drift import alarm_table, matched_table, peaks_table
from reports.tables.runs import cost_table, health_table, judge_table, judges, trial_table, tuning_table, upstream_table
from reports.tables.table import (
    Head,
    Table,
    TableCell,
    columns,
    declared,
    sample,
    shown,
    shown_difference,
    size,
    toned,
    words,
)
from reports.text.words import counted, name, number, p_value, setting

MOST_VALUES = 2
"""Knobs whose values stand under the baseline's name."""
_QUALITY = (
    "eval/win_rate", "eval/win_rate_proxy", "eval/preference_accuracy", "eval/gold", "eval/proxy",
    "eval/kl_per_token", "eval/kl_per_sequence", "eval/entropy", "eval/perplexity_texts",
    "eval/perplexity_texts_reference", "eval/fault_rate", "eval/fault_rate_reference",
)  # fmt: skip
_TEXT = ("eval/length", "eval/eos_rate", "eval/distinct_1", "eval/distinct_2", "eval/ppl_reference", "eval/tie_rate")
ACCURACY = "eval/preference_accuracy"
_N = Head("n", "seeds × prompts")


def all_tables(records: StudyRecords, findings: Findings) -> list[Table]:
    """Make every table of the report, in the order of the page; the last one only of a search."""
    configs = records.configs
    clipped = [arm for arm, config in configs.items() if config.algorithm.trust_region == "clip"]
    one_step = [arm for arm in clipped if configs[arm].algorithm.learns and configs[arm].train.steps_per_update == 1]
    text = [key for key in records.reported(_TEXT, ()) if key != records.study.objective.metric]
    tables = [
        claims_table(records, findings),
        arm_table(records, findings),
        parts_table(records, findings) if parts(records) else None,
        _estimates("completions", "Completions", records, findings, text) if text else None,
        crossings_table(records, findings) if findings.crossings else None,
        effects_table(records, findings),
        power_table(records, findings),
        matched_table(records, findings),
        alarm_table(findings),
        peaks_table(findings.peaks) if findings.peaks else None,
        health_table(findings.health, one_step),
        verdict_table(findings),
        judge_table(records) if judges(records) else None,
        status_table(records, findings),
        cost_table(records),
        trial_table(records),
        upstream_table(records),
        tuning_table(findings.search) if findings.search else None,
    ]
    return [table for table in tables if table is not None]


def arm_table(records: StudyRecords, findings: Findings, quality: Sequence[str] = _QUALITY) -> Table:
    """Show the objective, quality and drift of every arm, or where its training ended."""
    own = list(dict.fromkeys((records.study.objective.metric, *records.reported(quality, ENDS))))
    ends = [key for key in own if key in ENDS] if records.study.foreign else []
    title = "Quality and drift" if records.reported(_QUALITY, ()) else "Where training ended"
    won = ACCURACY in own and any(decided_won(result) is not None for result in findings.arms)
    return _estimates("arms", title, records, findings, own, ends=ends, keys=own, won=won)


def parts_table(records: StudyRecords, findings: Findings) -> Table:
    """Show the scores by each part of a composite reward, and by each further judge."""
    keys = list(parts(records))
    rewards, further = (any(key.startswith(head) for key in keys) for head in ("eval/reward/", "eval/gold/"))
    title = ", ".join(["Parts of the proxy"] * rewards + ["Further judges"] * further)
    return _estimates("parts", title, records, findings, keys, rewards=rewards)


def effects_table(records: StudyRecords, findings: Findings) -> Table:
    """Show differences to the baseline with corrected p-values."""
    objective = records.study.objective.metric
    metrics = list(dict.fromkeys(effect.metric for effect in findings.effects if effect.estimate))
    single = [metric for metric in metrics if once(records, metric)]

    def smallest(one: Effect) -> TableCell:
        p = "" if one.p_equivalence is None else f"p {p_value(one.p_equivalence)}"
        return TableCell(number(one.smallest, one.metric), p)

    data = [
        {"metric": one.metric, "unit": METRICS[one.metric].unit, "arm": one.arm}
        | {**columns("difference", one.estimate), **sample(one.estimate), "p": one.p, "p_holm": one.p_holm}
        | {"smallest": one.smallest, "p_equivalence_holm": one.p_equivalence, "outcome": one.outcome}
        for one in findings.effects
    ]
    shape = (
        (words("arm"), lambda one: one.arm),
        (words("metric", "unit"), lambda one: TableCell(name(one.metric), METRICS[one.metric].unit)),
        (Head("difference", "95 % interval"), lambda one: shown_difference(one.estimate, one.metric)),
        (_N, lambda one: size(one.estimate)),
        (Head("p"), lambda one: p_value(one.p)),
        (Head("p, Holm"), lambda one: p_value(one.p_holm)),
        (Head("smallest that matters", "p of equivalence, Holm"), smallest),
        (words("finding"), lambda one: toned(effect_word(one, objective))),
    )
    values: dict[str, Any] = {"baseline": records.baseline, "metrics": metrics, "single": single}
    return declared("effects", "Effect against the baseline", findings.effects, shape, data, **values)


def power_table(records: StudyRecords, findings: Findings) -> Table:
    """Show the difference on the objective that the design would have found in each arm."""
    metric = records.study.objective.metric
    unit = METRICS[metric].unit
    shape = (
        (words("arm"), lambda one: one.arm),
        (Head("detectable difference", unit), lambda one: number(one.detectable, metric)),
        (Head("smallest that matters", unit), lambda one: number(one.target, metric)),
        (Head("seeds"), lambda one: str(one.seeds)),
        (Head("seeds needed"), lambda one: str(one.seeds_needed or "–")),
    )
    names = ["arm", "metric", "detectable", "target", "seeds", "seeds_needed"]
    return declared("power", "Power", findings.power, shape, map(vars, findings.power), names)


def verdict_table(findings: Findings) -> Table:
    """Show every falsifier on every trial, with the evidence."""
    rows = [(claim, verdict) for claim in findings.claims for verdict in claim.verdicts]
    data = [
        {**vars(v), "metric": claim.falsifier.metric, "unit": METRICS[claim.falsifier.metric].unit}
        | dict(zip(("interval_low", "interval_high"), v.interval or (None, None), strict=True))
        for claim, v in rows
    ]
    names = [
        "name", "metric", "unit", "arm", "seed", "outcome", "step", "value", "n", "reason", "arm_value",
        "baseline_value", "interval_low", "interval_high",
    ]  # fmt: skip
    shape = (
        (words("claim"), lambda row: row[1].name),
        (words("arm"), lambda row: row[1].arm),
        (Head("seed"), lambda row: str(row[1].seed)),
        (words("verdict"), lambda row: toned(row[1].outcome)),
        (Head("step", "gradient steps"), lambda row: f"{row[1].step:,}" if row[1].step is not None else "–"),
        (Head("value"), lambda row: number(row[1].value)),
        (Head("n", "records"), lambda row: str(row[1].n)),
        (words("evidence"), lambda row: row[1].reason),
    )
    return declared("verdicts", "Verdicts by trial", rows, shape, data, names)


def status_table(records: StudyRecords, findings: Findings) -> Table:
    """Show how many trials of each arm ended how."""
    present = list(records.counts())
    data = [
        {"arm": one.arm, "planned": one.planned} | {status: one.counts.get(status, 0) for status in STATUSES}
        for one in findings.arms
    ]
    shape = [
        (words("arm"), lambda one: one.arm),
        (Head("planned", "trials"), lambda one: str(one.planned)),
        *[(Head(s, "trials"), lambda one, status=s: str(one.counts.get(status, 0))) for s in present],
    ]
    return declared("statuses", "How the trials ended", findings.arms, shape, data, present=present)


def effect_word(effect: Effect, objective: str) -> str:
    """Return `better` and `worse` for the objective; `higher` and `lower` for other metrics."""
    if effect.metric == objective or effect.outcome not in ("better", "worse"):
        return effect.outcome
    return "higher" if (effect.outcome == "better") == effect.maximize else "lower"


def _estimates(
    table_name: str, title: str, records: StudyRecords, findings: Findings, shown_keys: Sequence[str], **values: Any
) -> Table:
    """Show some metrics of every arm."""
    present = [key for key in shown_keys if any(key in one.estimates for one in findings.arms)] or shown_keys
    own = records.baseline_values
    settings = ", ".join(f"{key} {setting(value)}" for key, value in own.items()) if len(own) <= MOST_VALUES else ""

    def named(one: ArmResult) -> TableCell:
        return TableCell(one.arm, (settings or "baseline") if one.arm == records.study.baseline else "")

    data = [
        {"arm": one.arm, "seeds": len(one.seeds), "planned_seeds": one.planned, "prompts": _prompts(one)}
        | {f"n_{status}": n for status, n in one.counts.items()}
        | {column: value for key in present for column, value in columns(key, one.estimates.get(key)).items()}
        for one in findings.arms
    ]
    values["methods"] = {one.estimates[key].method for one in findings.arms for key in present if key in one.estimates}
    shape = (
        (words("arm"), named),
        (_N, _size),
        *[
            (Head(name(key), METRICS[key].unit.removeprefix("1")), lambda one, key=key: _value(one, key))
            for key in present
        ],
    )
    return declared(table_name, title, findings.arms, shape, data, **values)


def _size(one: ArmResult) -> TableCell:
    seeds, prompts = len(one.seeds), _prompts(one)
    return TableCell("0" if not seeds else f"{seeds} × {prompts}" if prompts else counted(seeds, "seed"), one.flags)


def _value(one: ArmResult, key: str) -> TableCell:
    """Return an estimate; preference accuracy comes with the share that it has to be compared with."""
    cell = shown(one.estimates.get(key), key)
    won = decided_won(one) if key == ACCURACY else None
    return cell if won is None else replace(cell, detail=f"{cell.detail}; won {number(won, key)}")


def decided_won(result: ArmResult) -> float | None:
    """Return the share of the pairs that the judge decides which the policy wins, (win rate - ties / 2) / (1 - ties),
    mean over seeds; None without preference accuracy. A proxy that always prefers the policy has this preference
    accuracy."""
    wins, ties = (result.per_seed.get(key, {}) for key in ("eval/win_rate", "eval/tie_rate"))
    seeds = [seed for seed in result.per_seed.get(ACCURACY, {}) if seed in wins and ties.get(seed, 1.0) < 1.0]
    shares = [(wins[seed] - ties[seed] / 2) / (1 - ties[seed]) for seed in seeds]
    return math.fsum(shares) / len(shares) if shares else None


def _prompts(result: ArmResult) -> int:
    return max((estimate.prompts for estimate in result.estimates.values()), default=0)
