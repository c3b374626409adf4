"""The tables of a report: what each of them says."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics import METRICS
from reports.estimates import ArmResult, Effect, Findings
from reports.load import StudyRecords
from reports.stats import Estimate
from reports.tabular import Cell, Head, Table
from reports.words import interval, name, number, p_value, signed, span

STATUS_WORDS = {
    "complete": "ran to its last step",
    "budget": "a cap ended it; evaluated where it stood (censored)",
    "diverged": "non-finite or collapsed; an outcome, not averaged unless it could be evaluated",
    "pruned": "stopped by the planner",
    "failed": "a fault of the program or the machine; runs again with the study",
    "stale": "run with another configuration than the study gives now; left out",
    "missing": "planned, not run yet",
}


def all_tables(records: StudyRecords, findings: Findings) -> list[Table]:
    """Every table of the report, in the order of the page."""
    return [
        arm_table(records, findings),
        text_table(records, findings),
        effects_table(records, findings),
        verdict_table(findings),
        status_table(records, findings),
        cost_table(records),
        trial_table(records),
        upstream_table(records),
    ]


def arm_table(records: StudyRecords, findings: Findings) -> Table:
    """Quality and drift of every arm."""
    keys = ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_token", "eval/kl_per_sequence", "eval/entropy")
    return _estimates("arms", "Quality and drift", records, findings, keys)


def text_table(records: StudyRecords, findings: Findings) -> Table:
    """What the completions look like."""
    keys = ("eval/length", "eval/eos_rate", "eval/distinct_1", "eval/distinct_2", "eval/ppl_reference", "eval/tie_rate")
    return _estimates("completions", "Completions", records, findings, keys)


def effects_table(records: StudyRecords, findings: Findings) -> Table:
    """Differences to the baseline with corrected p-values."""
    heads = (
        Head("arm", numeric=False), Head("metric", "unit", numeric=False), Head("difference", "95 % interval"),
        Head("seeds × prompts"), Head("p"), Head("p, Holm"), Head("finding", numeric=False),
    )  # fmt: skip
    rows = []
    for effect in findings.effects:
        unit = METRICS[effect.metric].unit
        if effect.estimate is None:
            rows.append((Cell(effect.arm), Cell(name(effect.metric), unit), *[Cell("–")] * 4, Cell("not estimable")))
            continue
        value, _, bounds = signed(effect.estimate, effect.metric).partition(" ")
        word = effect_word(effect, records.study.objective.metric)
        rows.append(
            (
                Cell(effect.arm),
                Cell(name(effect.metric), unit),
                Cell(value, bounds),
                Cell(_n(effect.estimate)),
                Cell(p_value(effect.p)),
                Cell(p_value(effect.p_holm)),
                Cell(word, tone={"better": "good", "worse": "bad"}.get(word, "")),
            )
        )
    note = (
        f"Arm minus baseline {records.study.baseline}, same seeds and same prompts. p: swap test over prompts; Holm: corrected over the "
        "arms of one metric. A finding needs a corrected p below 0.05 and an interval without 0. Better and worse are said of the study's "
        "objective; other metrics are higher or lower."
    )
    frame = pd.DataFrame([_effect_record(effect) for effect in findings.effects])
    return Table("effects", "Effect against the baseline", note, heads, tuple(rows), frame)


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
                    Cell(v.name),
                    Cell(v.arm),
                    Cell(str(v.seed)),
                    Cell(v.outcome, tone=tone),
                    Cell(f"{v.step:,}" if v.step is not None else "–"),
                    Cell(number(v.value)),
                    Cell(str(v.n)),
                    Cell(v.reason),
                )
            )
            data.append({**vars(v), "metric": claim.falsifier.metric, "unit": METRICS[claim.falsifier.metric].unit})
    note = "One refuted trial refutes the claim; a trial that took too few steps or lacks the metric is not tested."
    columns = ["name", "metric", "unit", "arm", "seed", "outcome", "step", "value", "n", "reason"]
    return Table("verdicts", "Verdicts by trial", note, heads, tuple(rows), pd.DataFrame(data, columns=columns))


def status_table(records: StudyRecords, findings: Findings) -> Table:
    """How many trials of each arm ended how."""
    present = list(records.counts())
    heads = (
        Head("arm", numeric=False),
        Head("planned", "trials"),
        *[Head(status, "trials") for status in present],
        Head("diverged of ended", "95 % interval"),
    )
    rows, data = [], []
    for result in findings.arms:
        rate = result.divergence
        cells = [Cell(str(result.counts.get(status, 0))) for status in present]
        shown = Cell(number(rate.value, "eval/win_rate"), span(rate, "eval/win_rate")) if rate else Cell("–")
        rows.append((Cell(result.arm), Cell(str(len(records.seeds))), *cells, shown))
        counts = {status: result.counts.get(status, 0) for status in STATUS_WORDS}
        data.append({"arm": result.arm, "planned": len(records.seeds), **counts, **_interval_columns("divergence_rate", rate)})
    note = "; ".join(f"{status}: {STATUS_WORDS[status]}" for status in present) + ". Interval: Wilson."
    return Table("statuses", "How the trials ended", note, heads, tuple(rows), pd.DataFrame(data))


def cost_table(records: StudyRecords) -> Table:
    """What an ended trial of each arm cost: mean over its trials, with the range under it."""
    shown = {
        "steps": Head("steps", "gradient steps"),
        "cost/wall_s": Head("wall clock", "s"),
        "cost/generated_tokens": Head("generated", "tokens"),
        "cost/peak_memory_gib": Head("peak memory", "GiB"),
        "cost/tflop": Head("arithmetic", "TFLOP"),
        "cost/t4_s": Head("on a T4, modelled", "s"),
    }
    columns = [key for key in shown if key in records.trials.columns]
    rows, data = [], []
    for arm in records.arms:
        ended = records.trials[(records.trials["arm"] == arm) & (records.trials["status"] != "missing")]
        cells = [Cell(arm), Cell(str(len(ended)))]
        record: dict[str, Any] = {"arm": arm, "trials": len(ended)}
        for key in columns:
            values = ended[key].dropna().astype(float)
            if len(values):
                low, high, centre = float(values.min()), float(values.max()), float(values.mean())
                cells.append(Cell(_amount(centre), f"{_amount(low)} to {_amount(high)}" if high > low else ""))
                record |= {f"{key}_mean": centre, f"{key}_min": low, f"{key}_max": high}
            else:
                cells.append(Cell("–"))
        rows.append(tuple(cells))
        data.append(record)
    note = "Mean over the arm's ended trials; below it the smallest and largest, where they differ. Measured quantities, so no interval."
    return Table(
        "cost",
        "Cost of a trial",
        note,
        (Head("arm", numeric=False), Head("n", "trials"), *[shown[c] for c in columns]),
        tuple(rows),
        pd.DataFrame(data),
    )


def trial_table(records: StudyRecords) -> Table:
    """One row per planned trial."""
    heads = (
        Head("arm", numeric=False), Head("seed"), Head("status", numeric=False), Head("steps", "of planned"), Head("win rate", "fraction"),
        Head("KL per sequence", "nats"), Head("ppo key", numeric=False), Head("evaluate key", numeric=False), Head("remark", numeric=False),
    )  # fmt: skip
    rows, keys = [], []
    for trial in records.trials.to_dict("records"):
        record = records.records.get((str(trial["arm"]), int(trial["seed"])))
        stages = {stage: ref.key for stage, ref in record.stages.items()} if record else {}
        keys.append(stages)
        remark = record.reason or "" if record else ""
        values = [Cell(number(float(trial.get(key, float("nan"))), key)) for key in ("eval/win_rate", "eval/kl_per_sequence")]
        rows.append(
            (
                Cell(str(trial["arm"])),
                Cell(str(trial["seed"])),
                Cell(str(trial["status"])),
                Cell(f"{trial['steps']:,} of {trial['planned_steps']:,}"),
                *values,
                Cell(stages.get("ppo", "–")[:12]),
                Cell(stages.get("evaluate", "–")[:12]),
                Cell(remark),
            )
        )
    frame = records.trials.copy()
    for stage in dict.fromkeys(stage for ran in keys for stage in ran):
        frame[f"key/{stage}"] = [ran.get(stage) for ran in keys]
    return Table(
        "trials",
        "Trials",
        "Stage keys name the folders in the store; they change with anything that can change the result.",
        heads,
        tuple(rows),
        frame,
    )


def upstream_table(records: StudyRecords) -> Table:
    """The stages that trials share, and how good they are."""
    heads = (Head("stage", numeric=False), Head("key", numeric=False), Head("used by", "trials"), Head("measured", numeric=False))
    shared = [entry for entry in records.upstream if entry["stage"] not in ("ppo", "evaluate")]
    rows, data = [], []
    for entry in shared:
        measured = "; ".join(f"{key.replace('_', ' ')} {number(value)}" for key, value in sorted(entry["summary"].items()))
        rows.append((Cell(entry["stage"]), Cell(entry["key"][:12]), Cell(str(entry["trials"])), Cell(measured or "–")))
        data.append({"stage": entry["stage"], "key": entry["key"], "trials": entry["trials"], **entry["summary"]})
    note = "Built once and shared by all trials with the same key. Perplexity: of the reference on held-out texts; "
    note += "accuracy: of the reward on held-out pairs."
    return Table("upstream", "Shared stages", note, heads, tuple(rows), pd.DataFrame(data))


def effect_word(effect: Effect, objective: str) -> str:
    """`better` and `worse` for the objective; `higher` and `lower` for what only accompanies it."""
    if effect.metric == objective or effect.outcome not in ("better", "worse"):
        return effect.outcome
    return "higher" if (effect.outcome == "better") == effect.maximize else "lower"


def _estimates(table_name: str, title: str, records: StudyRecords, findings: Findings, keys: tuple[str, ...]) -> Table:
    shown = [key for key in keys if any(key in result.estimates for result in findings.arms)] or list(keys)
    heads = (Head("arm", numeric=False), Head("seeds × prompts"), *[Head(name(key), METRICS[key].unit.removeprefix("1")) for key in shown])
    rows = tuple(_arm_row(records, result, shown) for result in findings.arms)
    data = []
    for result in findings.arms:
        record: dict[str, Any] = {"arm": result.arm, "seeds": len(result.seeds), "planned_seeds": len(records.seeds)}
        record |= {
            "prompts": max((e.prompts for e in result.estimates.values()), default=0),
            **{f"n_{k}": v for k, v in result.counts.items()},
        }
        for key in shown:
            record |= _interval_columns(key, result.estimates.get(key))
        data.append(record)
    methods = {result.estimates[key].method for result in findings.arms for key in shown if key in result.estimates}
    how = {"bootstrap": "two-level bootstrap over seeds and prompts", "student": "Student over seeds where a metric exists once per trial"}
    how |= {"wilson": "Wilson over prompts where all completions agree", "none": "none from a single seed"}
    note = (
        "Mean over evaluated seeds; below it the 95 % interval (" + "; ".join(how[m] for m in how if m in methods) + ")."
        if methods
        else "No trial was evaluated."
    )
    return Table(table_name, title, note, heads, rows, pd.DataFrame(data))


def _arm_row(records: StudyRecords, result: ArmResult, keys: list[str]) -> tuple[Cell, ...]:
    baseline = "baseline" if result.arm == records.study.baseline else ""
    flags = [f"{n} {status}" for status, n in result.counts.items() if status != "complete"]
    prompts = max((e.prompts for e in result.estimates.values()), default=0)
    cells = [Cell(result.arm, baseline), Cell(f"{len(result.seeds)} × {prompts}" if result.seeds else "0", ", ".join(flags))]
    for key in keys:
        found = result.estimates.get(key)
        cells.append(Cell(*_value_and_span(found, key)) if found else Cell("–"))
    return tuple(cells)


def _value_and_span(estimate: Estimate, key: str) -> tuple[str, str]:
    value, _, bounds = interval(estimate, key).partition(" ")
    return value, bounds


def _interval_columns(key: str, estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}


def _effect_record(effect: Effect) -> dict[str, Any]:
    e = effect.estimate
    size = {"seeds": e.seeds, "prompts": e.prompts, "method": e.method} if e else {"seeds": 0, "prompts": 0, "method": None}
    tests = {"p": effect.p, "p_holm": effect.p_holm, "outcome": effect.outcome}
    return {
        "metric": effect.metric,
        "unit": METRICS[effect.metric].unit,
        "arm": effect.arm,
        **_interval_columns("difference", e),
        **size,
        **tests,
    }


def _n(estimate: Estimate) -> str:
    return f"{estimate.seeds} × {estimate.prompts}" if estimate.prompts else f"{estimate.seeds} seeds"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else number(value)
