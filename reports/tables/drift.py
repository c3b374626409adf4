"""Tables of equal drift, of where over-optimisation began, and of the peak of gold."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.run.metrics import METRICS
from reports.findings.findings import Findings
from reports.findings.matched_kl import MatchedKL
from reports.findings.trajectories import ArmAlarm, ArmPeak
from reports.records.load import StudyRecords
from reports.statistics.series import BLOCKS
from reports.tables.table import (
    DASH,
    Head,
    Table,
    TableCell,
    columns,
    declared,
    sample,
    shown,
    shown_difference,
    size,
    words,
)
from reports.text.say import say
from reports.text.words import listed, name, number, p_value


def matched_table(records: StudyRecords, findings: Findings) -> Table:
    """Compare every arm with the score that the baseline's method reaches at the KL at which the arm ends."""

    def found(row: MatchedKL) -> TableCell:
        if row.reason:
            return TableCell("not compared", say("drift", "not_compared", row))
        return TableCell({"better": "higher", "worse": "lower"}.get(row.outcome, row.outcome))

    data = [
        {"metric": row.metric, "unit": METRICS[row.metric].unit, "arm": row.arm, "method": row.method}
        | {"method_arms": " ".join(row.arms), "method_collapsed": " ".join(row.collapsed)}
        | {"between": " ".join(row.between), **columns("kl", row.kl), **columns("arm_value", row.arm_value)}
        | {**columns("method_value", row.base_value), **columns("difference", row.difference)}
        | {**sample(row.difference), "p": row.p, "p_holm": row.p_holm, "outcome": row.outcome}
        | {"not_compared": say("drift", "not_compared", row)}
        for row in findings.matched
    ]
    shape = (
        (words("arm"), lambda row: row.arm),
        (words("metric", "unit"), lambda row: TableCell(name(row.metric), METRICS[row.metric].unit)),
        (Head("ends at KL", "nats per sequence"), lambda row: shown(row.kl)),
        (words("baseline's method", "interpolated between"), lambda row: TableCell(row.method, listed(row.between))),
        (Head("arm", "value"), lambda row: shown(row.arm_value, row.metric)),
        (Head("method", "value there"), lambda row: shown(row.base_value, row.metric)),
        (Head("difference", "95 % interval"), lambda row: shown_difference(row.difference, row.metric)),
        (
            Head("n", "seeds × prompts"),
            lambda row: TableCell(size(row.difference), say("drift", "left_out", row) if row.difference else ""),
        ),
        (Head("p, Holm"), lambda row: p_value(row.p_holm)),
        (words("finding"), found),
    )
    first = next(iter(findings.matched), None)
    return declared("matched_kl", "At equal drift", findings.matched, shape, data, first=first)


def alarm_table(findings: Findings) -> Table:
    """Show where gold turned down while the proxy went on rising."""
    data = [
        {"arm": one.arm, "seed": seed, **vars(alarm)} for one in findings.alarms for seed, alarm in one.alarms.items()
    ]

    def steps(one: ArmAlarm) -> TableCell:
        values = [alarm.step for alarm in one.alarms.values()]
        if not values:
            return DASH
        low, high = min(values), max(values)
        return TableCell(f"{sum(values) / len(values):,.0f}", f"{low:,.0f} to {high:,.0f}" if high > low else "")

    def highest(one: ArmAlarm) -> TableCell | str:
        gold = [alarm.gold for alarm in one.alarms.values()]
        return number(sum(gold) / len(gold)) if gold else DASH

    shape = (
        (words("arm"), lambda one: one.arm),
        (Head("over-optimised", "trials"), lambda one: f"{len(one.alarms)} of {one.trials}"),
        (Head("turning point", "nats per sequence"), lambda one: shown(one.kl) if one.alarms else DASH),
        (Head("at step", "gradient steps"), steps),
        (Head("highest gold", "judge points"), highest),
    )
    names = ["arm", "seed", "step", "kl", "gold", "proxy"]
    return declared("alarms", "Over-optimisation", findings.alarms, shape, data, names)


def peaks_table(peaks: Sequence[ArmPeak]) -> Table:
    """Show place and height of the peak of every arm, and the fall from there to the end."""
    data = [
        {"arm": one.arm, **columns("step", one.step), **columns("root_kl", one.root_kl), **columns("gold", one.gold)}
        | {**columns("fall", one.fall), **sample(one.gold)}
        for one in peaks
    ]
    shape = (
        (words("arm"), lambda one: one.arm),
        (Head("peak at", "gradient steps"), lambda one: shown(one.step)),
        (Head("√KL at the peak", "√(nats per sequence)"), lambda one: shown(one.root_kl)),
        (Head("gold at the peak", "judge points"), lambda one: shown(one.gold)),
        (Head("fall to the end", "judge points"), lambda one: shown_difference(one.fall)),
        (Head("n"), lambda one: size(one.gold)),
    )
    title = "Peak of the gold reward along training"
    return declared("gold_peaks", title, peaks, shape, data, blocks=BLOCKS)
