"""The tables of results: every arm, its effect against the baseline, how sure that is, verdicts, and how trials
ended."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.findings import ENDS, ROBUST, ArmResult, Effect, Findings, Power, once
from reports.findings.pairs import parts
from reports.records.load import StudyRecords
from reports.statistics.two_level import ALPHA
from reports.tables.cells import DASH, columns, sample, shown, shown_difference, size
from reports.tables.claims import claims_table
from reports.tables.coverage import coverage_table
from reports.tables.crossings import crossings_table
from reports.tables.drift import alarm_table, matched_table
from reports.tables.judge import judge_table, judges
from reports.tables.peaks import peaks_table
from reports.tables.runs import cost_table, trial_table, upstream_table
from reports.tables.search import tuning_table
from reports.tables.symptoms import health_table
from reports.tables.table import Head, Table, TableCell
from reports.text.words import counted, listed, name, number, p_value, setting

STATUS_WORDS = {
    "complete": "ran to its last step",
    "budget": "a cap ended it; evaluated at that point (censored)",
    "diverged": "non-finite or collapsed; an outcome, not averaged unless it could be evaluated",
    "pruned": "stopped by the planner",
    "failed": "a fault of the program or the machine; runs again with the study",
    "stale": "run with another configuration than the study gives now; left out",
    "missing": "planned, not run yet",
}
MOST_VALUES = 2
"""Knobs whose values stand under the baseline's name."""
_TEXT = ("eval/length", "eval/eos_rate", "eval/distinct_1", "eval/distinct_2", "eval/ppl_reference", "eval/tie_rate")
ACCURACY = "eval/preference_accuracy"
_WON = (
    "Preference accuracy: compare it with the share of decided pairs that the policy wins (won). A proxy that always"
    " prefers the policy scores that share."
)
_ARM, _N = Head("arm", numeric=False), Head("n", "seeds × prompts")


def all_tables(records: StudyRecords, findings: Findings) -> list[Table]:
    """Every table of the report, in the order of the page; completions only of evaluated trials, the last two only of a
    search."""
    tables = [
        claims_table(records, findings),
        arm_table(records, findings),
        *([parts_table(records, findings)] if parts(records) else []),
        *([text_table(records, findings)] if records.reported(_TEXT, ()) else []),
        *([robust_table(findings)] if records.reported(ROBUST, ()) else []),
        *([crossings_table(records, findings)] if findings.crossings else []),
        effects_table(records, findings),
        sensitivity_table(records, findings),
        matched_table(records, findings),
        alarm_table(findings),
        *([peaks_table(findings.peaks)] if findings.peaks else []),
        health_table(findings.health),
        verdict_table(findings),
        *([judge_table(records)] if judges(records) else []),
        status_table(records, findings),
        cost_table(records),
        trial_table(records),
        upstream_table(records),
        coverage_table(),
    ]
    return tables + ([tuning_table(findings.search)] if findings.search else [])


def arm_table(records: StudyRecords, findings: Findings) -> Table:
    """Quality and drift of every arm, or where its training ended."""
    keys = (
        "eval/win_rate", "eval/win_rate_proxy", "eval/preference_accuracy", "eval/gold", "eval/proxy",
        "eval/kl_per_token", "eval/kl_per_sequence", "eval/entropy", "eval/perplexity_texts",
        "eval/perplexity_texts_reference", "eval/fault_rate", "eval/fault_rate_reference",
    )  # fmt: skip
    own = tuple(dict.fromkeys((records.study.objective.metric, *records.reported(keys, ENDS))))
    ends = [key for key in own if key in ENDS]
    title = "Quality and drift" if records.reported(keys, ()) else "Where training ended"
    table = _estimates("arms", title, records, findings, own)
    if any(decided_won(result) is not None for result in findings.arms):
        table = replace(table, note=f"{table.note} {_WON}")
    if not ends or records.study.imported is None:
        return table
    of = "Of" if len(ends) == len(own) else f"{listed([name(key) for key in ends])}: of"
    return replace(table, note=f"{of} each trial the mean of the last tenth of its records. {table.note}")


def text_table(records: StudyRecords, findings: Findings) -> Table:
    """What the completions look like."""
    keys = tuple(key for key in records.reported(_TEXT, ()) if key != records.study.objective.metric)
    return _estimates("completions", "Completions", records, findings, keys)


def parts_table(records: StudyRecords, findings: Findings) -> Table:
    """What each part of a composite reward, and each further judge, says of the policies."""
    keys = tuple(parts(records))
    rewards, judges = (any(key.startswith(head) for key in keys) for head in ("eval/reward/", "eval/gold/"))
    titles = ["Parts of the proxy"] * rewards + ["Further judges"] * judges
    table = _estimates("parts", ", ".join(titles), records, findings, keys)
    said = "Each part as it was calibrated on reference samples, before its weight. " * rewards
    if "eval/reward/disagreement" in keys:
        said += "Disagreement: standard deviation over the models of an ensemble. "
    return replace(table, note=f"{said}{table.note}")


def robust_table(findings: Findings) -> Table:
    """Interquartile means beside the means."""
    heads = [_ARM, _N]
    for key in ROBUST:
        heads += [Head(f"{name(key)}, mean", METRICS[key].unit), Head("interquartile mean", METRICS[key].unit)]
    rows, data = [], []
    for result in findings.arms:
        cells = [TableCell(result.arm), TableCell(size(next(iter(result.iqm.values()), None)))]
        record: dict[str, Any] = {"arm": result.arm, **sample(next(iter(result.iqm.values()), None))}
        for key in ROBUST:
            cells += [shown(result.estimates.get(key), key), shown(result.iqm.get(key), key)]
            record |= columns(key, result.estimates.get(key)) | columns(f"{key}_iqm", result.iqm.get(key))
        rows.append(tuple(cells))
        data.append(record)
    note = (
        "Interquartile mean: over all completions of all seeds without the lowest and the highest quarter; where it"
        " differs from the mean, a few completions dominate the mean. Intervals: 95 %, over seeds"
        " and prompts."
    )
    return Table("robust", "Means and interquartile means", note, tuple(heads), tuple(rows), pd.DataFrame(data))


def effects_table(records: StudyRecords, findings: Findings) -> Table:
    """Differences to the baseline with corrected p-values."""
    heads = (
        _ARM, Head("metric", "unit", numeric=False), Head("difference", "95 % interval"), _N,
        Head("p"), Head("p, Holm"), Head("smallest that matters", "p of equivalence, Holm"),
        Head("finding", numeric=False),
    )  # fmt: skip
    rows = []
    for effect in findings.effects:
        word = effect_word(effect, records.study.objective.metric)
        rows.append(
            (
                TableCell(effect.arm),
                TableCell(name(effect.metric), METRICS[effect.metric].unit),
                shown_difference(effect.estimate, effect.metric),
                TableCell(size(effect.estimate)),
                TableCell(p_value(effect.p)),
                TableCell(p_value(effect.p_holm)),
                TableCell(
                    number(effect.smallest, effect.metric),
                    "" if effect.p_equivalence is None else f"p {p_value(effect.p_equivalence)}",
                ),
                TableCell(word, tone={"better": "good", "worse": "bad"}.get(word, "")),
            )
        )
    metrics = list(dict.fromkeys(effect.metric for effect in findings.effects if effect.estimate))
    single = [metric for metric in metrics if once(records, metric)]
    note = f"Arm minus {records.baseline}, same seeds{' and same prompts' * (len(single) < len(metrics))}. "
    note += "p: two-sided, for new seeds and prompts; p, Holm: corrected over the arms of one metric. "
    if single:
        which = "All metrics" if len(single) == len(metrics) else listed([name(metric) for metric in single])
        note += f"Compared over seeds alone, by Student's paired t test, since they exist once per trial: {which}. "
    note += (
        f"Better or worse: p, Holm below {ALPHA:g} and an interval without 0; of other metrics than the study's"
        " objective, higher or lower. Equivalent: two one-sided tests against the smallest difference that matters,"
        f" their p corrected in the same way and below {ALPHA:g}. Undecided: neither."
    )
    frame = pd.DataFrame([_effect_record(effect) for effect in findings.effects])
    return Table("effects", "Effect against the baseline", note, heads, tuple(rows), frame)


def sensitivity_table(records: StudyRecords, findings: Findings) -> Table:
    """How often an arm beats the baseline, and what difference the design would have found."""
    metric = records.study.objective.metric
    unit = METRICS[metric].unit
    heads = (
        _ARM, Head("beats the baseline", "probability"), _N, Head("detectable difference", unit),
        Head("smallest that matters", unit), Head("detectable", numeric=False), Head("seeds needed"),
    )  # fmt: skip
    better = {improvement.arm: improvement for improvement in findings.improvements}
    power = {arm_power.arm: arm_power for arm_power in findings.power}
    rows, data = [], []
    for arm in dict.fromkeys((*better, *power)):
        improved, need = better.get(arm), power.get(arm)
        estimate = improved.estimate if improved else None
        rows.append((TableCell(arm), shown(estimate, "eval/win_rate"), TableCell(size(estimate)), *_power_cells(need)))
        record: dict[str, Any] = {
            "arm": arm,
            "improvement_metric": improved.metric if improved else None,
            **columns("improvement", estimate),
        }
        record |= {**sample(estimate), "metric": metric, "unit": unit}
        keys = ("detectable", "target", "seeds_needed", "more_prompts")
        data.append(record | {key: getattr(need, key) if need else None for key in keys})
    compared = (
        f" on {listed(sorted({name(improvement.metric) for improvement in findings.improvements}))}" if better else ""
    )
    note = (
        f"Beats the baseline: share of the same seeds and prompts on which the arm is ahead{compared}, ties counting"
        " half. Detectable difference: the smallest true difference of the objective that is found with 80 % power at"
        " Holm's strictest step, given how these seeds and prompts vary. Seeds needed: to detect the smallest"
        " difference that matters on as many prompts, if new seeds vary as much as these; a rough guide with few seeds."
    )
    return Table("sensitivity", "Probability of improvement, and power", note, heads, tuple(rows), pd.DataFrame(data))


def _power_cells(need: Power | None) -> tuple[TableCell, ...]:
    if need is None:
        return DASH, DASH, DASH, DASH
    if need.target is None or need.suffices is None:
        return TableCell(number(need.detectable, need.metric)), DASH, DASH, DASH
    seeds = "more prompts" if need.more_prompts else str(need.seeds_needed or "–")
    enough = "yes" if need.suffices else "no"
    sizes = (TableCell(number(size, need.metric)) for size in (need.detectable, need.target))
    return *sizes, TableCell(enough), TableCell(seeds, f"there are {need.seeds}")


def verdict_table(findings: Findings) -> Table:
    """Every falsifier on every trial, with the evidence."""
    heads = (
        Head("claim", numeric=False), Head("arm", numeric=False), Head("seed"), Head("verdict", numeric=False),
        Head("step", "gradient steps"), Head("value"), Head("n", "records"), Head("evidence", numeric=False),
    )  # fmt: skip
    rows, data = [], []
    for claim in findings.claims:
        for v in claim.verdicts:
            tone = {"SURVIVED": "good", "FALSIFIED": "bad"}.get(v.outcome, "")
            rows.append(
                (
                    TableCell(v.name),
                    TableCell(v.arm),
                    TableCell(str(v.seed)),
                    TableCell(v.outcome, tone=tone),
                    TableCell(f"{v.step:,}" if v.step is not None else "–"),
                    TableCell(number(v.value)),
                    TableCell(str(v.n)),
                    TableCell(v.reason),
                )
            )
            low, high = v.interval or (None, None)
            ends = {"interval_low": low, "interval_high": high}
            data.append({**vars(v), **ends, "metric": claim.falsifier.metric, "unit": claim.falsifier.unit})
    note = "One refuted trial refutes the claim; a trial that took too few steps or lacks the metric is not tested."
    names = [
        "name", "metric", "unit", "arm", "seed", "outcome", "step", "value", "n", "reason", "arm_value",
        "baseline_value", "interval_low", "interval_high",
    ]  # fmt: skip
    return Table("verdicts", "Verdicts by trial", note, heads, tuple(rows), pd.DataFrame(data, columns=names))


def status_table(records: StudyRecords, findings: Findings) -> Table:
    """How many trials of each arm ended how; rates of divergence only where some trial diverged."""
    present = list(records.counts())
    rates = (Head("diverged of ended", "95 % interval"), Head("against the baseline", "95 % interval"))
    counts = [Head(status, "trials") for status in present]
    heads = (_ARM, Head("planned", "trials"), *counts, *(rates if "diverged" in present else ()))
    rows, data = [], []
    for result in findings.arms:
        rate, apart = result.divergence, result.divergence_difference
        cells = [TableCell(result.arm), TableCell(str(sum(result.counts.values())))]
        cells += [TableCell(str(result.counts.get(status, 0))) for status in present]
        if "diverged" in present:
            cells += [shown(rate, "eval/win_rate"), shown_difference(apart, "eval/win_rate")]
        rows.append(tuple(cells))
        tally = {status: result.counts.get(status, 0) for status in STATUS_WORDS}
        shares = columns("divergence_rate", rate) | columns("divergence_difference", apart)
        planned = sum(result.counts.values())
        data.append({"arm": result.arm, "planned": planned, **tally, "ended": rate.seeds if rate else 0, **shares})
    note = "; ".join(f"{status}: {STATUS_WORDS[status]}" for status in present) + "."
    if "diverged" in present:
        note += (
            " Diverged: share of the trials that were complete, ended by a cap or diverged (Wilson), and its difference"
            " to the baseline's (Newcombe)."
        )
    return Table("statuses", "How the trials ended", note, heads, tuple(rows), pd.DataFrame(data))


def effect_word(effect: Effect, objective: str) -> str:
    """`better` and `worse` for the objective; `higher` and `lower` for what only accompanies it."""
    if effect.metric == objective or effect.outcome not in ("better", "worse"):
        return effect.outcome
    return "higher" if (effect.outcome == "better") == effect.maximize else "lower"


def _estimates(table_name: str, title: str, records: StudyRecords, findings: Findings, keys: tuple[str, ...]) -> Table:
    present = [key for key in keys if any(key in result.estimates for result in findings.arms)] or list(keys)
    heads = (_ARM, _N, *[Head(name(key), METRICS[key].unit.removeprefix("1")) for key in present])
    rows = tuple(_arm_row(records, findings, result, present) for result in findings.arms)
    data = []
    for result in findings.arms:
        record: dict[str, Any] = {"arm": result.arm, "seeds": len(result.seeds), "planned_seeds": result.planned}
        record |= {"prompts": _prompts(result), **{f"n_{status}": n for status, n in result.counts.items()}}
        for key in present:
            record |= columns(key, result.estimates.get(key))
        data.append(record | {"best_on": " ".join(key for key in present if findings.best.get(key) == result.arm)})
    note = _method_note(findings, present)
    marked = [name(key) for key in present if key in findings.best]
    if marked:
        note += (
            f" Bold ({listed(marked)}): better than every other evaluated arm; its paired differences to them all have"
            f" an interval without 0, at a level of 1 − {ALPHA:g} / (arms − 1)."
        )
    return Table(table_name, title, note, heads, rows, pd.DataFrame(data))


def _method_note(findings: Findings, keys: list[str]) -> str:
    methods = {result.estimates[key].method for result in findings.arms for key in keys if key in result.estimates}
    how = {
        "hierarchical": "hierarchical model of seeds and prompts",
        "student": "Student over seeds where a metric exists once per trial",
    }
    how |= {
        "wilson": "Wilson over prompts where all completions have the same outcome",
        "none": "none from a single seed",
    }
    if not methods:
        return "No trial was evaluated."
    return (
        "Mean over evaluated seeds; below it the 95 % interval ("
        + "; ".join(how[method] for method in how if method in methods)
        + ")."
    )


def _arm_row(records: StudyRecords, findings: Findings, result: ArmResult, keys: list[str]) -> tuple[TableCell, ...]:
    own = records.baseline_values
    named = (
        ", ".join(f"{key} {setting(value)}" for key, value in own.items())
        if 0 < len(own) <= MOST_VALUES
        else "baseline"
    )
    baseline = named if result.arm == records.study.baseline else ""
    flags = [f"{n} {status}" for status, n in result.counts.items() if status != "complete"]
    values = [_value(result, key, bold=findings.best.get(key) == result.arm) for key in keys]
    prompts = _prompts(result)
    n = (f"{len(result.seeds)} × {prompts}" if prompts else counted(len(result.seeds), "seed")) if result.seeds else "0"
    return TableCell(result.arm, baseline), TableCell(n, ", ".join(flags)), *values


def _value(result: ArmResult, key: str, *, bold: bool) -> TableCell:
    """An estimate; of preference accuracy with what it has to be compared with."""
    cell = shown(result.estimates.get(key), key, bold=bold)
    won = decided_won(result) if key == ACCURACY else None
    return cell if won is None else replace(cell, detail=f"{cell.detail}; won {number(won, key)}")


def decided_won(result: ArmResult) -> float | None:
    """Share of the pairs that the judge decides which the policy wins, (win rate - ties / 2) / (1 - ties), mean over
    seeds; None without preference accuracy. A proxy that always prefers the policy has this preference accuracy."""
    wins, ties = (result.per_seed.get(key, {}) for key in ("eval/win_rate", "eval/tie_rate"))
    seeds = [seed for seed in result.per_seed.get(ACCURACY, {}) if seed in wins and ties.get(seed, 1.0) < 1.0]
    shares = [(wins[seed] - ties[seed] / 2) / (1 - ties[seed]) for seed in seeds]
    return math.fsum(shares) / len(shares) if shares else None


def _prompts(result: ArmResult) -> int:
    return max((estimate.prompts for estimate in result.estimates.values()), default=0)


def _effect_record(effect: Effect) -> dict[str, Any]:
    head = {"metric": effect.metric, "unit": METRICS[effect.metric].unit, "arm": effect.arm}
    tests = {"p": effect.p, "p_holm": effect.p_holm, "smallest": effect.smallest}
    tests |= {"p_equivalence_holm": effect.p_equivalence}
    estimate = columns("difference", effect.estimate) | sample(effect.estimate)
    return {**head, **estimate, **tests, "outcome": effect.outcome}
