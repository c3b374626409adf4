"""What of the difference between two versions is noise of the processors that they ran on."""

from __future__ import annotations

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.machines import UNKNOWN, Machines, Rerun
from reports.pages.page import Part
from reports.tables.table import Head, Table, TableCell
from reports.text.words import counted, listed, name, number

TITLE = "What of it is noise of the processor"


def noise_part(machines: Machines) -> Part:
    """Sentences on processors and equal policies; where trials of one configuration differ, by how much a run does."""
    return Part("noise", TITLE, tuple(_sentences(machines)), _tables(machines))


def _sentences(machines: Machines) -> list[str]:
    n = len(machines.cells)
    if not n:
        return ["No trial was trained with the same configuration and seed in both, so noise cannot be estimated."]
    policies = f"{machines.equal} of {n} policies are equal byte for byte"
    said = [f"{counted(n, 'trial')} have the same configuration and seed in both. {policies}. {_where(machines)}"]
    if machines.equal == n:
        return [*said, "What differs between the versions is therefore not training."]
    if machines.otherwise:
        return [
            *said,
            f"The environments also differ in {listed(machines.otherwise)}, so the differences are not those of the"
            " processor alone, and its noise is not estimated.",
        ]
    if machines.same:
        return [
            *said,
            "On equal processors the same code gives equal policies, so something that the records do not name"
            " differs: uncommitted code, data, or the reward model.",
        ]
    return [*said, *map(_verdict, machines.reruns)]


def _where(machines: Machines) -> str:
    old, new = machines.processors
    if machines.same:
        return f"Both ran on {old}."
    unknown = "" if machines.known else " Records of older versions do not name the processor."
    return f"Old: {_named(old)}; new: {_named(new)}.{unknown}"


def _named(processor: str) -> str:
    return "processor unknown" if processor == UNKNOWN else processor


def _verdict(rerun: Rerun) -> str:
    """One metric in one sentence."""
    beyond = [f"{shift.arm} ({number(shift.difference, rerun.metric)})" for shift in rerun.shifts if shift.exceeds]
    tested = [shift for shift in rerun.shifts if shift.limit is not None]
    if not tested:
        what = "with a single arm, it cannot be said whether the arm moved by more"
    elif beyond:
        what = f"{listed(beyond)} moved by more than the other arms' trials explain"
    else:
        what = f"none of {counted(len(tested), 'arm')} moved by more than the other arms' trials explain"
    seeds = (
        "" if rerun.seed_sd is None else f" (between seeds on the old machine: {number(rerun.seed_sd, rerun.metric)})"
    )
    return (
        f"{name(rerun.metric)}: one run on another processor varies with an sd of {number(rerun.sd, rerun.metric)}"
        f" [{number(rerun.low, rerun.metric)}, {number(rerun.high, rerun.metric)}] {METRICS[rerun.metric].unit}"
        f"{seeds}; {what}."
    )


def _tables(machines: Machines) -> tuple[Table, ...]:
    if not machines.cells or machines.otherwise or machines.same or machines.equal == len(machines.cells):
        return ()
    heads = (
        Head("metric", "unit", numeric=False), Head("arm", numeric=False), Head("new − old", "mean over seeds"),
        Head("limit of noise", "±, 95 %"), Head("n", "seeds"), Head("finding", numeric=False),
    )  # fmt: skip
    rows, data = [], []
    for rerun in machines.reruns:
        for shift in rerun.shifts:
            found = "not testable" if shift.limit is None else "exceeds noise" if shift.exceeds else "within noise"
            rows.append(
                (
                    TableCell(name(rerun.metric), METRICS[rerun.metric].unit), TableCell(shift.arm),
                    TableCell(number(shift.difference, rerun.metric)), TableCell(number(shift.limit, rerun.metric)),
                    TableCell(str(shift.seeds)), TableCell(found),
                )
            )  # fmt: skip
            data.append(
                {"metric": rerun.metric, "arm": shift.arm, "difference": shift.difference, "limit": shift.limit}
                | {"seeds": shift.seeds, "finding": found, "machine_sd": rerun.sd, "machine_sd_low": rerun.low}
                | {"machine_sd_high": rerun.high, "pairs": rerun.pairs, "seed_sd": rerun.seed_sd}
            )
    if not rows:
        return ()
    note = (
        "Paired by configuration and seed. Limit: Student's t times the standard error of an arm's mean difference,"
        " estimated from the other arms and corrected for the number of arms (Bonferroni). Reference and reward model"
        " were trained on both processors where their keys differ: what that moves is common to all arms and counts as"
        " noise."
    )
    return (Table("noise", "Differences against noise", note, heads, tuple(rows), pd.DataFrame(data)),)
