"""The tables of results: every arm, its effect against the baseline, how sure that is, verdicts, and how trials
ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.findings import ENDS, ROBUST, ArmResult, Effect, Findings, Power, once
from reports.findings.pairs import parts
from reports.records.load import StudyRecords
from reports.statistics import two_level as stats
from reports.tables.cells import DASH, columns, sample, shown, shown_difference, size
from reports.tables.drift import alarm_table, law_table, matched_table
from reports.tables.runs import cost_table, trial_table, upstream_table
from reports.tables.search import importance_table, tuning_table
from reports.tables.table import Head, Table, TableCell
from reports.text.words import counted, listed, name, number, p_value, setting
from studies.definition.schema import IMPORTED

STATUS_WORDS = {
    "complete": "ran to its last step",
    "budget": "a cap ended it; evaluated where it stood (censored)",
    "diverged": "non-finite or collapsed; an outcome, not averaged unless it could be evaluated",
    "pruned": "stopped by the planner",
    "failed": "a fault of the program or the machine; runs again with the study",
    "stale": "run with another configuration than the study gives now; left out",
    "missing": "planned, not run yet",
}
MOST_VALUES = 2
"""Knobs whose values stand under the baseline's name."""
_ARM, _N = Head("arm", numeric=False), Head("n", "seeds × prompts")


def all_tables(records: StudyRecords, findings: Findings) -> list[Table]:
    """Every table of the report, in the order of the page; completions not of imported trials, the last two only of a
    search."""
    tables = [
        arm_table(records, findings),
        *([parts_table(records, findings)] if parts(records) else []),
        *([] if records.study.kind == IMPORTED else [text_table(records, findings), robust_table(findings)]),
        effects_table(records, findings),
        sensitivity_table(records, findings),
        matched_table(records, findings),
        law_table(records, findings),
        alarm_table(findings),
        verdict_table(findings),
        status_table(records, findings),
        cost_table(records),
        trial_table(records),
        upstream_table(records),
    ]
    return tables + ([tuning_table(findings.search), importance_table(findings.search)] if findings.search else [])


def arm_table(records: StudyRecords, findings: Findings) -> Table:
    """Quality and drift of every arm; of imported trials where their training ended."""
    if records.study.kind == IMPORTED:
        keys = tuple(dict.fromkeys((records.study.objective.metric, *ENDS)))
        table = _estimates("arms", "Where training ended", records, findings, keys)
        return replace(table, note=f"Of each trial the mean of the last tenth of its records. {table.note}")
    keys = ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_token", "eval/kl_per_sequence", "eval/entropy")
    return _estimates(
        "arms", "Quality and drift", records, findings, tuple(dict.fromkeys((records.study.objective.metric, *keys)))
    )


def text_table(records: StudyRecords, findings: Findings) -> Table:
    """What the completions look like."""
    keys = ("eval/length", "eval/eos_rate", "eval/distinct_1", "eval/distinct_2", "eval/ppl_reference", "eval/tie_rate")
    return _estimates(
        "completions",
        "Completions",
        records,
        findings,
        tuple(key for key in keys if key != records.study.objective.metric),
    )


def parts_table(records: StudyRecords, findings: Findings) -> Table:
    """What each part of a composite reward says of the policies."""
    table = _estimates("parts", "Parts of the proxy", records, findings, tuple(parts(records)))
    return replace(table, note=f"Each part as it was calibrated on reference samples, before its weight. {table.note}")


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
        " departs from the mean, a few completions decide the mean. Intervals: two-level bootstrap over seeds and"
        " prompts, 95 %."
    )
    return Table("robust", "Means and interquartile means", note, tuple(heads), tuple(rows), pd.DataFrame(data))


def effects_table(records: StudyRecords, findings: Findings) -> Table:
    """Differences to the baseline with corrected p-values."""
    heads = (
        _ARM, Head("metric", "unit", numeric=False), Head("difference", "95 % interval"), _N,
        Head("p, these seeds"), Head("p, new seeds"), Head("p, Holm"), Head("finding", numeric=False),
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
                TableCell(p_value(effect.p_seeds)),
                TableCell(p_value(effect.p_holm)),
                TableCell(word, tone={"better": "good", "worse": "bad"}.get(word, "")),
            )
        )
    found = list(dict.fromkeys(effect.metric for effect in findings.effects if effect.estimate))
    single = [metric for metric in found if once(records, metric)]
    note = f"Arm minus {records.baseline}, same seeds{' and same prompts' * (len(single) < len(found))}. "
    if len(single) < len(found):
        note += (
            "p, these seeds: sign-flip permutation over prompts; p, new seeds: t test with the variance between seeds"
            " and between prompts; p, Holm: the larger of the two, corrected over the arms of one metric. "
        )
    if single:
        of = (
            "All of this"
            if len(single) == len(found)
            else f"What stands here of {listed([name(metric) for metric in single])}"
        )
        note += (
            f"{of} exists once per trial, so only seeds can tell: p, these seeds flips the signs of S paired"
            " differences and cannot go below 2/2^S; p, new seeds is Student's paired t test, which counts alone where"
            " so few seeds could never pass the other. "
        )
    note += (
        f"A finding needs p, Holm below {stats.ALPHA:g} and an interval without 0. Better and worse are said of the"
        " study's objective; other metrics are higher or lower."
    )
    frame = pd.DataFrame([_effect_record(effect) for effect in findings.effects])
    return Table("effects", "Effect against the baseline", note, heads, tuple(rows), frame)


def sensitivity_table(records: StudyRecords, findings: Findings) -> Table:
    """How often an arm beats the baseline, and what difference the design would have found."""
    metric = records.study.objective.metric
    unit = METRICS[metric].unit
    heads = (
        _ARM, Head("beats the baseline", "probability"), _N, Head("difference it would find", unit),
        Head("worth finding", unit), Head("enough", numeric=False), Head("seeds it takes"),
    )  # fmt: skip
    better = {one.arm: one for one in findings.improvements}
    power = {one.arm: one for one in findings.power}
    rows, data = [], []
    for arm in dict.fromkeys((*better, *power)):
        found, need = better.get(arm), power.get(arm)
        estimate = found.estimate if found else None
        rows.append((TableCell(arm), shown(estimate, "eval/win_rate"), TableCell(size(estimate)), *_power_cells(need)))
        record: dict[str, Any] = {
            "arm": arm,
            "improvement_metric": found.metric if found else None,
            **columns("improvement", estimate),
        }
        record |= {**sample(estimate), "metric": metric, "unit": unit}
        keys = ("detectable", "target", "seeds_needed", "more_prompts")
        data.append(record | {key: getattr(need, key) if need else None for key in keys})
    compared = f" on {listed(sorted({name(one.metric) for one in findings.improvements}))}" if better else ""
    note = (
        f"Beats the baseline: share of the same seeds and prompts on which the arm is ahead{compared}, ties counting"
        " half; two-level bootstrap. Difference it would find: the smallest true difference of the objective found"
        " with 80 % power at Holm's strictest step, given how these seeds and prompts vary. Seeds it takes: to find"
        " what is worth finding on as many prompts, if seeds vary as those seen; with few of them a rough guide."
    )
    return Table(
        "sensitivity", "How sure, and what could have been found", note, heads, tuple(rows), pd.DataFrame(data)
    )


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
            data.append({**vars(v), "metric": claim.falsifier.metric, "unit": METRICS[claim.falsifier.metric].unit})
    note = "One refuted trial refutes the claim; a trial that took too few steps or lacks the metric is not tested."
    names = ["name", "metric", "unit", "arm", "seed", "outcome", "step", "value", "n", "reason"]
    return Table("verdicts", "Verdicts by trial", note, heads, tuple(rows), pd.DataFrame(data, columns=names))


def status_table(records: StudyRecords, findings: Findings) -> Table:
    """How many trials of each arm ended how."""
    present = list(records.counts())
    heads = (
        _ARM,
        Head("planned", "trials"),
        *[Head(status, "trials") for status in present],
        Head("diverged of ended", "95 % interval"),
        Head("against the baseline", "95 % interval"),
    )
    rows, data = [], []
    for result in findings.arms:
        cells = [TableCell(str(result.counts.get(status, 0))) for status in present]
        rate, apart = result.divergence, result.divergence_difference
        rows.append(
            (
                TableCell(result.arm),
                TableCell(str(result.planned)),
                *cells,
                shown(rate, "eval/win_rate"),
                shown_difference(apart, "eval/win_rate"),
            )
        )
        counts = {status: result.counts.get(status, 0) for status in STATUS_WORDS}
        rates = columns("divergence_rate", rate) | columns("divergence_difference", apart)
        data.append(
            {"arm": result.arm, "planned": result.planned, **counts, "ended": rate.seeds if rate else 0, **rates}
        )
    note = "; ".join(f"{status}: {STATUS_WORDS[status]}" for status in present)
    note += (
        ". Diverged: share of the trials that were complete, ended by a cap or diverged (Wilson), and its difference to"
        " the baseline's "
    )
    note += "(Newcombe)."
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
            f" an interval without 0, at a level of 1 − {stats.ALPHA:g} / (arms − 1)."
        )
    return Table(table_name, title, note, heads, rows, pd.DataFrame(data))


def _method_note(findings: Findings, keys: list[str]) -> str:
    methods = {result.estimates[key].method for result in findings.arms for key in keys if key in result.estimates}
    how = {
        "bootstrap": "two-level bootstrap over seeds and prompts",
        "student": "Student over seeds where a metric exists once per trial",
    }
    how |= {"wilson": "Wilson over prompts where all completions agree", "none": "none from a single seed"}
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
    values = [shown(result.estimates.get(key), key, bold=findings.best.get(key) == result.arm) for key in keys]
    prompts = _prompts(result)
    n = (f"{len(result.seeds)} × {prompts}" if prompts else counted(len(result.seeds), "seed")) if result.seeds else "0"
    return TableCell(result.arm, baseline), TableCell(n, ", ".join(flags)), *values


def _prompts(result: ArmResult) -> int:
    return max((estimate.prompts for estimate in result.estimates.values()), default=0)


def _effect_record(effect: Effect) -> dict[str, Any]:
    head = {"metric": effect.metric, "unit": METRICS[effect.metric].unit, "arm": effect.arm}
    tests = {"p": effect.p, "p_seeds": effect.p_seeds, "p_holm": effect.p_holm, "outcome": effect.outcome}
    return {**head, **columns("difference", effect.estimate), **sample(effect.estimate), **tests}
