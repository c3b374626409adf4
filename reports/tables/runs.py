"""Tables of the trials: their cost, their ends, and the stages they share."""

from __future__ import annotations

from typing import Any

import pandas as pd

from reports.records.load import StudyRecords
from reports.tables.table import Head, Table, TableCell, declared, words
from reports.text.words import number

COSTS = {
    "steps": Head("steps", "gradient steps"),
    "cost/wall_s": Head("wall clock", "s"),
    "cost/generated_tokens": Head("generated", "tokens"),
    "cost/peak_memory_gib": Head("peak memory", "GiB"),
    "cost/state_gib": Head("training state", "GiB"),
    "cost/tflop": Head("arithmetic", "TFLOP"),
    "cost/t4_s": Head("on a T4, modelled", "s"),
    "cost/evaluate_generated_tokens": Head("sampled to answer", "tokens"),
}


def cost_table(records: StudyRecords) -> Table:
    """Show the cost of an ended trial of each arm: the mean over its trials, with the range under it."""
    on_cpu = all(record.environment.get("device", "cpu") == "cpu" for record in records.records.values())
    keys = [key for key in COSTS if key in records.trials.columns]
    keys = [key for key in keys if not (on_cpu and key == "cost/t4_s")]  # on a CPU it is a model of another machine
    ended = records.trials[records.trials["status"] != "missing"]
    own = {arm: ended[ended["arm"] == arm] for arm in records.arms}
    spent = {(arm, key): rows[key].dropna().astype(float) for arm, rows in own.items() for key in keys}

    def cell(values: pd.Series) -> TableCell:
        if values.empty:
            return TableCell("–")
        low, high = float(values.min()), float(values.max())
        return TableCell(_amount(float(values.mean())), f"{_amount(low)} to {_amount(high)}" if high > low else "")

    data = [
        {"arm": arm, "trials": len(own[arm])}
        | {
            f"{key}_{part}": float(getattr(values, part)())
            for key in keys
            if len(values := spent[arm, key])
            for part in ("mean", "min", "max")
        }
        for arm in records.arms
    ]
    shape = (
        (words("arm"), lambda arm: arm),
        (Head("n", "trials"), lambda arm: str(len(own[arm]))),
        *[(COSTS[key], lambda arm, key=key: cell(spent[arm, key])) for key in keys],
    )
    return declared("cost", "Cost of a trial", records.arms, shape, data, charged=set(records.trials.columns))


def trial_table(records: StudyRecords) -> Table:
    """Show a row per planned trial."""
    trials: list[dict[Any, Any]] = records.trials.to_dict("records")
    found = [records.records.get((trial["arm"], trial["seed"])) for trial in trials]
    rows = [
        {
            **trial,
            "keys": {stage: ref.key for stage, ref in record.stages.items()} if record else {},
            "remark": (record.reason if record else None) or "",
        }
        for trial, record in zip(trials, found, strict=True)
    ]
    frame = records.trials.copy()
    for stage in dict.fromkeys(stage for row in rows for stage in row["keys"]):
        frame[f"key/{stage}"] = [row["keys"].get(stage) for row in rows]
    shape = (
        (words("arm"), lambda row: row["arm"]),
        (Head("seed"), lambda row: str(row["seed"])),
        (words("status"), lambda row: row["status"]),
        (Head("steps", "of planned"), lambda row: f"{row['steps']:,} of {row['planned_steps']:,}"),
        (Head("win rate", "fraction"), lambda row: number(row.get("eval/win_rate"), "eval/win_rate")),
        (Head("KL per sequence", "nats"), lambda row: number(row.get("eval/kl_per_sequence"))),
        (words("train key"), lambda row: row["keys"].get("train", "–")[:12]),
        (words("evaluate key"), lambda row: row["keys"].get("evaluate", "–")[:12]),
        (words("remark"), lambda row: row["remark"]),
    )
    return declared("trials", "Trials", rows, shape, frame)


def upstream_table(records: StudyRecords) -> Table:
    """Show the stages that trials share, and how good they are."""
    shared = [entry for entry in records.upstream if entry["stage"].partition("-")[0] not in ("train", "evaluate")]

    def measured(entry: dict[str, Any]) -> str:
        """Rates of a judge have a table of their own."""
        own = {key: value for key, value in entry["summary"].items() if entry["stage"] != "judge" or "/" not in key}
        return "; ".join(f"{key.replace('_', ' ')} {number(own[key])}" for key in sorted(own)) or "–"

    shape = (
        (words("stage"), lambda entry: entry["stage"]),
        (words("key"), lambda entry: entry["key"][:12]),
        (Head("used by", "trials"), lambda entry: str(entry["trials"])),
        (words("measured"), measured),
    )
    data = [{key: entry[key] for key in ("stage", "key", "trials")} | entry["summary"] for entry in shared]
    return declared("upstream", "Shared stages", shared, shape, data, rounds=any("-" in one["stage"] for one in shared))


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else number(value)
