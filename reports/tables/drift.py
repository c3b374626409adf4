"""Tables of what drift bought: arms at equal drift, and where over-optimisation began."""

from __future__ import annotations

import math

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.findings import Findings
from reports.findings.trajectories import ArmAlarm
from reports.records.load import StudyRecords
from reports.tables.cells import DASH, columns, sample, shown, shown_difference, size
from reports.tables.table import Head, Table, TableCell
from reports.text.drift import left_out, not_compared
from reports.text.words import listed, name, number, p_value


def matched_table(records: StudyRecords, findings: Findings) -> Table:
    """Every arm against what the baseline's method reaches at the KL at which the arm ends."""
    heads = (
        Head("arm", numeric=False), Head("metric", "unit", numeric=False), Head("ends at KL", "nats per sequence"),
        Head("baseline's method", "interpolated between", numeric=False), Head("arm", "value"),
        Head("method", "value there"), Head("difference", "95 % interval"), Head("n", "seeds × prompts"),
        Head("p, Holm"), Head("finding", numeric=False),
    )  # fmt: skip
    rows, data = [], []
    for row in findings.matched:
        unit = METRICS[row.metric].unit
        outcome = {"better": "higher", "worse": "lower"}.get(row.outcome, row.outcome)
        rows.append(
            (
                TableCell(row.arm),
                TableCell(name(row.metric), unit),
                shown(row.kl),
                TableCell(row.method, listed(list(row.between))),
                shown(row.arm_value, row.metric),
                shown(row.base_value, row.metric),
                shown_difference(row.difference, row.metric),
                TableCell(size(row.difference), left_out(row) if row.difference else ""),
                TableCell(p_value(row.p_holm)),
                TableCell("not compared", not_compared(row)) if row.reason else TableCell(outcome),
            )
        )
        head = {
            "metric": row.metric,
            "unit": unit,
            "arm": row.arm,
            "method": row.method,
            "method_arms": " ".join(row.arms),
            "method_collapsed": " ".join(row.collapsed),
            "between": " ".join(row.between),
        }
        values = (
            columns("kl", row.kl)
            | columns("arm_value", row.arm_value)
            | columns("method_value", row.base_value)
            | columns("difference", row.difference)
        )
        tests = {
            "p": row.p,
            "p_holm": row.p_holm,
            "outcome": row.outcome,
            "not_compared": not_compared(row) or left_out(row),
        }
        data.append({**head, **values, **sample(row.difference), **tests})
    return Table("matched_kl", "At equal drift", _matched_note(findings), heads, tuple(rows), pd.DataFrame(data))


def _matched_note(findings: Findings) -> str:
    if not findings.matched:
        return ""
    first = findings.matched[0]
    return (
        "Both sides at the end of their training: each seed of an arm against what the baseline's method"
        f" ({first.method}: {listed(list(first.arms))}) reaches on that seed at the same KL per sequence, by a monotone"
        " cubic in √KL through the ends of its arms and the reference, where its score is known. Nothing is"
        f" extrapolated{f'; {listed(list(first.collapsed))} collapsed and left out' if first.collapsed else ''}."
        " Differences are paired by seed and prompt; p is Holm-corrected over the arms of a metric."
    )


def alarm_table(findings: Findings) -> Table:
    """Where gold turned down while the proxy went on rising."""
    heads = (
        Head("arm", numeric=False), Head("over-optimised", "trials"), Head("turning point", "nats per sequence"),
        Head("at step", "gradient steps"), Head("seen at step", "gradient steps"), Head("highest gold", "judge points"),
    )  # fmt: skip
    rows = [_alarm_row(arm_alarm) for arm_alarm in findings.alarms]
    data = [
        {"arm": arm_alarm.arm, "seed": seed, **vars(alarm)}
        for arm_alarm in findings.alarms
        for seed, alarm in arm_alarm.alarms.items()
    ]
    note = (
        "Trials whose gold reward fell by more than noise explains while the proxy rose; at most 5 % of studies"
        " without a trend show any. Turning point: the KL at the highest running mean of gold, mean over those trials"
        " with Student's interval over seeds; below the steps, lowest to highest."
    )
    names = ["arm", "seed", "step", "kl", "gold", "proxy", "seen_step", "seen_kl"]
    return Table("alarms", "Over-optimisation", note, heads, tuple(rows), pd.DataFrame(data, columns=names))


def _alarm_row(arm_alarm: ArmAlarm) -> tuple[TableCell, ...]:
    alarms = list(arm_alarm.alarms.values())
    if not alarms:
        return TableCell(arm_alarm.arm), TableCell(f"0 of {arm_alarm.trials}"), DASH, DASH, DASH, DASH
    steps, seen = [alarm.step for alarm in alarms], [alarm.seen_step for alarm in alarms]
    gold = math.fsum(alarm.gold for alarm in alarms) / len(alarms)
    return (
        TableCell(arm_alarm.arm),
        TableCell(f"{len(alarms)} of {arm_alarm.trials}"),
        shown(arm_alarm.kl),
        _spread(steps),
        _spread(seen),
        TableCell(number(gold)),
    )


def _spread(values: list[float]) -> TableCell:
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return TableCell(f"{mean:,.0f}", f"{low:,.0f} to {high:,.0f}" if high > low else "")
