"""Tables of the trials: cost, ends, health, the stages they share, errors of the judge, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.records.load import SearchResult, StudyRecords
from reports.tables.table import DASH, Head, Table, TableCell, declared, words
from reports.text.phrases import health_sentence
from reports.text.words import name, number, setting
from studies.claims.symptoms import ArmHealth, in_percent

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
    rows: list[dict[Any, Any]] = records.trials.to_dict("records")
    for row in rows:
        record = records.records.get((row["arm"], row["seed"]))
        row["remark"] = (record.reason if record else None) or ""
        row["keys"] = {stage: ref.key for stage, ref in record.stages.items()} if record else {}
    keys = pd.DataFrame([row["keys"] for row in rows]).add_prefix("key/")
    frame = records.trials.join(keys)
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


_NAMES = [
    "arm", "seed", "series", "side", "bound", "outside", "records", "share", "late", "first_step", "cause", "knob",
]  # fmt: skip


def health_table(arms: Sequence[ArmHealth], one_step: Sequence[str] = ()) -> Table:
    """Show every arm: its unhealthy trials, and the series that was outside its band for the largest share of a
    trial; `one_step`: arms with a clip that take one gradient step on a rollout."""
    data = [
        (one.arm, seed, s.key, s.side, s.bound, s.outside, s.n, s.share, s.late, s.first, s.cause, s.knob)
        for one in arms
        for seed, found in one.unhealthy.items()
        for s in found
    ]

    def count(one: ArmHealth) -> TableCell:
        return TableCell(f"{one.ill} of {one.judged}", f"{len(one.diverged)} diverged" if one.diverged else "")

    def worst(one: ArmHealth) -> TableCell:
        if one.worst is None:
            return TableCell("none")
        return TableCell(one.worst[1].condition, f"also {', '.join(one.others)}" if one.others else "")

    def share(one: ArmHealth) -> TableCell:
        if one.worst is None:
            return DASH
        seed, symptom = one.worst
        return TableCell(f"{in_percent(symptom.share)} %", f"{symptom.outside:,} of {symptom.span}, seed {seed}")

    shape = (
        (words("arm"), lambda one: one.arm),
        (Head("unhealthy", "trials"), count),
        (words("outside its band"), worst),
        (Head("share", "of the records"), share),
        (Head("first at", "gradient step"), lambda one: f"{one.worst[1].first:,}" if one.worst else DASH),
        (words("likely cause"), lambda one: one.worst[1].cause if one.worst else DASH),
        (words("setting to change"), lambda one: (one.worst[1].knob or DASH) if one.worst else DASH),
    )
    note: dict[str, Any] = {
        "sentence": health_sentence(arms),
        "unhealthy": any(one.unhealthy for one in arms),
        "one_step": one_step,
    }
    return declared("health", "Health of the trials", arms, shape, pd.DataFrame(data, columns=_NAMES), **note)


KINDS = {"real": "real texts", "shuffled": "their words shuffled", "praise": "words of praise instead"}


def judges(records: StudyRecords) -> list[dict[str, Any]]:
    """The judges of these trials that were measured, each once; empty where none has a guard."""
    measured = [one for one in records.upstream if one["stage"] == "judge" and "length" in one["summary"]]
    return list({repr(sorted(one["summary"].items())): one for one in measured}.values())


def judge_table(records: StudyRecords) -> Table:
    """Show a row per kind of text and judge."""
    found = judges(records)
    rows = [
        (one["summary"], kind, text) for one in found for kind, text in KINDS.items() if f"{kind}/n" in one["summary"]
    ]

    def called(row: tuple[Mapping[str, float], str, str]) -> str:
        summary, _, text = row
        return text + (f" (of at most {summary['length']:,.0f} tokens)" if len(found) > 1 else "")

    shape = (
        (words("texts"), called),
        (Head("n", "texts"), lambda row: f"{row[0][f'{row[1]}/n']:,.0f}"),
        (Head("with a fault", "%"), lambda row: _percent(row[0], f"{row[1]}/faulty")),
        (Head("wins against the real text", "%"), lambda row: _percent(row[0], f"{row[1]}/wins")),
        (Head("without the guard", "%"), lambda row: _percent(row[0], f"{row[1]}/wins_lexicon")),
    )
    data = [{"key": one["key"], **one["summary"]} for one in found]
    return declared("judge", "How often the judge errs", rows, shape, data, judges=[one["summary"] for one in found])


def _percent(summary: Mapping[str, float], key: str) -> TableCell:
    """A share with its interval; a dash where there is none."""
    if key not in summary:
        return TableCell("–")
    share, low, high = (100 * summary[name] for name in (key, f"{key}_low", f"{key}_high"))
    return TableCell(f"{share:.1f}", f"[{low:.1f}, {high:.1f}]")


def tuning_table(search: SearchResult) -> Table:
    """Show every trial of the search."""
    arms = {number: arm for arm, number in search.confirmed.items()}
    data = [
        {"number": trial.number, "arm": trial.arm, "status": trial.status, "steps": trial.steps}
        | {"feasible": trial.feasible, "pareto": trial.number in search.pareto, "confirmed_as": arms.get(trial.number)}
        | {f"knob/{key}": trial.overrides.get(key) for key in search.knobs}
        | {key: trial.values.get(key) for key in search.metrics}
        for trial in search.trials
    ]

    units = {key: METRICS[key].unit.removeprefix("1") if key in METRICS else "" for key in search.metrics}
    shape = (
        (Head("trial"), lambda one: str(one.number)),
        *[(Head(key), lambda one, key=key: setting(one.overrides.get(key, "–"))) for key in search.knobs],
        (words("status"), lambda one: one.status),
        (Head("steps", "gradient steps"), lambda one: f"{one.steps:,}"),
        *[
            (Head(name(key), unit), lambda one, key=key: number(one.values.get(key), key))
            for key, unit in units.items()
        ],
        (words("constraints"), lambda one: TableCell("kept") if one.feasible else TableCell("broken", tone="bad")),
        (words("front"), lambda one: "on it" if one.number in search.pareto else "–"),
        (words("confirmed as"), lambda one: arms.get(one.number, "–")),
    )
    return declared("tuning", "Trials of the search", search.trials, shape, data, trials=len(search.trials))
