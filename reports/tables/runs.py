"""Tables of what was run: trials, cost, and the stages they share."""

from __future__ import annotations

from typing import Any

import pandas as pd

from reports.records.load import StudyRecords
from reports.tables.table import Head, Table, TableCell
from reports.text.words import number


def cost_table(records: StudyRecords) -> Table:
    """What an ended trial of each arm cost: mean over its trials, with the range under it."""
    shown = {
        "steps": Head("steps", "gradient steps"),
        "cost/wall_s": Head("wall clock", "s"),
        "cost/generated_tokens": Head("generated", "tokens"),
        "cost/peak_memory_gib": Head("peak memory", "GiB"),
        "cost/state_gib": Head("training state", "GiB"),
        "cost/tflop": Head("arithmetic", "TFLOP"),
        "cost/t4_s": Head("on a T4, modelled", "s"),
        "cost/evaluate_generated_tokens": Head("sampled to answer", "tokens"),
    }
    columns = [key for key in shown if key in records.trials.columns]
    if all(record.environment.get("device", "cpu") == "cpu" for record in records.records.values()):
        columns = [key for key in columns if key != "cost/t4_s"]  # on a CPU it is a model of another machine
    rows, data = [], []
    for arm in records.arms:
        ended = records.trials[(records.trials["arm"] == arm) & (records.trials["status"] != "missing")]
        cells = [TableCell(arm), TableCell(str(len(ended)))]
        record: dict[str, Any] = {"arm": arm, "trials": len(ended)}
        for key in columns:
            values = ended[key].dropna().astype(float)
            if len(values):
                low, high, centre = float(values.min()), float(values.max()), float(values.mean())
                cells.append(TableCell(_amount(centre), f"{_amount(low)} to {_amount(high)}" if high > low else ""))
                record |= {f"{key}_mean": centre, f"{key}_min": low, f"{key}_max": high}
            else:
                cells.append(TableCell("–"))
        rows.append(tuple(cells))
        data.append(record)
    note = (
        "Mean over the arm's ended trials; below it the smallest and largest, where they differ. Measured quantities,"
        " so no interval."
    )
    if "cost/values_wall_s" in records.trials.columns:
        note += (
            " A trial whose algorithm needs scored samples of the reference is charged for all of them (stage values),"
            " also where several trials share them."
        )
    if "cost/opponents_wall_s" in records.trials.columns:
        note += (
            " A trial whose reward compares answers with those of the reference is charged for drawing and scoring"
            " these, also where several trials share them."
        )
    if "cost/evaluate_generated_tokens" in columns:
        note += (
            " Sampled to answer: all samples of arms that answer each held-out prompt with the best of several; no part"
            " of the other columns."
        )
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
        Head("arm", numeric=False), Head("seed"), Head("status", numeric=False), Head("steps", "of planned"),
        Head("win rate", "fraction"),
        Head("KL per sequence", "nats"), Head("train key", numeric=False), Head("evaluate key", numeric=False),
        Head("remark", numeric=False),
    )  # fmt: skip
    rows, keys = [], []
    for trial in records.trials.to_dict("records"):
        record = records.records.get((str(trial["arm"]), int(trial["seed"])))
        stages = {stage: ref.key for stage, ref in record.stages.items()} if record else {}
        keys.append(stages)
        remark = record.reason or "" if record else ""
        values = [
            TableCell(number(float(trial.get(key, float("nan"))), key))
            for key in ("eval/win_rate", "eval/kl_per_sequence")
        ]
        rows.append(
            (
                TableCell(str(trial["arm"])),
                TableCell(str(trial["seed"])),
                TableCell(str(trial["status"])),
                TableCell(f"{trial['steps']:,} of {trial['planned_steps']:,}"),
                *values,
                TableCell(stages.get("train", "–")[:12]),
                TableCell(stages.get("evaluate", "–")[:12]),
                TableCell(remark),
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
    heads = (
        Head("stage", numeric=False),
        Head("key", numeric=False),
        Head("used by", "trials"),
        Head("measured", numeric=False),
    )
    shared = [entry for entry in records.upstream if entry["stage"].partition("-")[0] not in ("train", "evaluate")]
    rows, data = [], []
    for entry in shared:
        measured = "; ".join(
            f"{key.replace('_', ' ')} {number(value)}"
            for key, value in sorted(entry["summary"].items())
            if entry["stage"] != "judge" or "/" not in key  # its rates have a table of their own
        )
        rows.append(
            (
                TableCell(entry["stage"]),
                TableCell(entry["key"][:12]),
                TableCell(str(entry["trials"])),
                TableCell(measured or "–"),
            )
        )
        data.append({"stage": entry["stage"], "key": entry["key"], "trials": entry["trials"], **entry["summary"]})
    note = "Built once and shared by all trials with the same key. Perplexity: of the reference on held-out texts; "
    note += "accuracy: of the reward on held-out pairs."
    if any("-" in entry["stage"] for entry in shared):
        note += (
            " reward-1, reward-2 and so on are the rewards of earlier rounds; that of the last one is called reward."
        )
    return Table("upstream", "Shared stages", note, heads, tuple(rows), pd.DataFrame(data))


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else number(value)
