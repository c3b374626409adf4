"""Tables of what drift bought: arms at matched KL, Gao's law, and where over-optimisation began."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.findings import Findings
from reports.findings.trajectories import ArmAlarm, kl_source
from reports.records.load import StudyRecords
from reports.tables.cells import DASH, columns, sample, shown, shown_difference
from reports.tables.table import Head, Table, TableCell
from reports.text.words import name, number, p_value


def matched_table(records: StudyRecords, findings: Findings) -> Table:
    """Every arm against the baseline where both had drifted equally far."""
    heads = (
        Head("arm", numeric=False), Head("metric", "unit", numeric=False), Head("at KL", "nats per sequence"),
        Head("arm", "value"),
        Head("baseline", "value"), Head("difference", "95 % interval"), Head("n", "seeds"),
        Head("steps taken", "arm / baseline"),
        Head("p, Holm"), Head("finding", numeric=False),
    )  # fmt: skip
    rows, data = [], []
    for row in findings.matched:
        unit = METRICS[row.metric].unit
        rows.append(
            (
                TableCell(row.arm),
                TableCell(name(row.metric), unit),
                TableCell(number(row.kl), row.place),
                shown(row.arm_value),
                shown(row.base_value),
                shown_difference(row.difference),
                TableCell(str(row.difference.seeds)),
                TableCell(f"{row.arm_step:,.0f} / {row.base_step:,.0f}"),
                TableCell(p_value(row.p_holm)),
                TableCell({"better": "higher", "worse": "lower"}.get(row.outcome, row.outcome)),
            )
        )
        head = {
            "metric": row.metric,
            "unit": unit,
            "arm": row.arm,
            "place": row.place,
            "kl": row.kl,
            "kl_low": row.low,
            "kl_high": row.high,
        }
        values = (
            columns("arm_value", row.arm_value)
            | columns("baseline_value", row.base_value)
            | columns("difference", row.difference)
        )
        tests = {
            "arm_step": row.arm_step,
            "baseline_step": row.base_step,
            "p": row.p,
            "p_holm": row.p_holm,
            "outcome": row.outcome,
        }
        data.append({**head, **values, **sample(row.difference), **tests})
    note = (
        f"Along each trial's own training, interpolated on the monotone trend of KL ({kl_source(records)}, rollouts)."
        " Farthest: the largest KL that all seeds of both arms reached; half way: a quarter of it, which is half of"
        " the distance √KL. Intervals: Student over seeds, paired by seed; p: Student's t over seeds, Holm-corrected"
        " over the arms of a metric and place. Equal drift is not equal training: the steps that each had taken stand"
        " beside it."
    )
    return Table("matched_kl", "At matched KL", note, heads, tuple(rows), pd.DataFrame(data))


def law_table(records: StudyRecords, findings: Findings) -> Table:
    """R(d) = d (a - b log d) by arm and over all."""
    heads = (
        Head("arm", numeric=False), Head("n", "trials"), Head("a", "95 % interval"), Head("b", "95 % interval"),
        Head("predicted peak", "nats per sequence"), Head("gain there"), Head("fitted up to", "nats per sequence"),
        Head("residual", "rms"),
    )  # fmt: skip
    rows, data = [], []
    for one in findings.laws:
        law = one.law
        peak = shown(law.peak_kl)
        if law.extrapolated:
            peak = TableCell(peak.text, f"{peak.detail} extrapolated".strip())
        rows.append(
            (
                TableCell(one.arm),
                TableCell(str(one.trials)),
                shown(law.a),
                shown(law.b),
                peak if law.peak_kl else TableCell("none", "b may be 0"),
                TableCell(number(law.peak_gain)),
                TableCell(number(law.largest_kl)),
                TableCell(number(law.residual)),
            )
        )
        record: dict[str, Any] = {
            "arm": one.arm,
            "metric": one.metric,
            "unit": METRICS[one.metric].unit,
            "trials": one.trials,
        }
        record |= {
            "reference": one.reference,
            **columns("a", law.a),
            **columns("b", law.b),
            **columns("peak_kl", law.peak_kl),
        }
        record |= {
            "peak_gain": law.peak_gain,
            "extrapolated": law.extrapolated,
            "largest_kl": law.largest_kl,
            "residual_rms": law.residual,
        }
        data.append({**record, "points": law.points})
    what = f"{name(findings.laws[0].metric)} in {METRICS[findings.laws[0].metric].unit}" if findings.laws else "reward"
    reference = f" of {number(findings.laws[0].reference)}" if findings.laws else ""
    note = (
        f"R(d) = d (a − b log d), d = √KL (Gao et al. 2022), fitted by least squares to the gain of the {what} over the"
        f" reference{reference}. Intervals: jackknife over trials. The predicted peak is d = exp(a / b − 1); there is"
        " none unless the interval of b lies above 0. The fit to all arms takes for granted that they share one curve;"
        " where its residual is far above theirs, they do not."
    )
    return Table("law", "Reward over drift", note, heads, tuple(rows), pd.DataFrame(data))


def alarm_table(findings: Findings) -> Table:
    """Where gold turned down while the proxy went on rising."""
    heads = (
        Head("arm", numeric=False), Head("over-optimised", "trials"), Head("turning point", "nats per sequence"),
        Head("at step", "gradient steps"), Head("seen at step", "gradient steps"), Head("highest gold", "judge points"),
    )  # fmt: skip
    rows = [_alarm_row(one) for one in findings.alarms]
    data = [
        {"arm": one.arm, "seed": seed, **vars(found)} for one in findings.alarms for seed, found in one.alarms.items()
    ]
    note = (
        "Trials whose gold reward fell from its highest running mean by more than noise explains (at most 5 % false"
        " alarms) while the proxy rose. Turning point: the KL of that highest gold, mean over those trials with"
        " Student's interval over seeds; below the steps, lowest to highest."
    )
    names = ["arm", "seed", "step", "kl", "gold", "proxy", "seen_step", "seen_kl"]
    return Table("alarms", "Over-optimisation", note, heads, tuple(rows), pd.DataFrame(data, columns=names))


def _alarm_row(one: ArmAlarm) -> tuple[TableCell, ...]:
    found = list(one.alarms.values())
    if not found:
        return TableCell(one.arm), TableCell(f"0 of {one.trials}"), DASH, DASH, DASH, DASH
    steps, seen = [alarm.step for alarm in found], [alarm.seen_step for alarm in found]
    gold = math.fsum(alarm.gold for alarm in found) / len(found)
    return (
        TableCell(one.arm),
        TableCell(f"{len(found)} of {one.trials}"),
        shown(one.kl),
        _spread(steps),
        _spread(seen),
        TableCell(number(gold)),
    )


def _spread(values: list[float]) -> TableCell:
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return TableCell(f"{mean:,.0f}", f"{low:,.0f} to {high:,.0f}" if high > low else "")
