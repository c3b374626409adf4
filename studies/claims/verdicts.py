"""Verdicts of a study from its records: no training, no torch, nothing but files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pipeline.errors import Damaged, Gone
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.metrics import UPDATE_STEPS, each_step, per_prompt
from pipeline.run.store import read_columns
from pipeline.stopping import Record
from studies.claims.evaluations import Evaluation, Outcomes, judge
from studies.claims.falsifiers import Series, Verdict, compare, evaluate, untested
from studies.definition.design import Planned
from studies.definition.falsifier import Falsifier
from studies.definition.schema import Study
from studies.definition.search import SEARCH

_STOPPED = {
    "budget": "a cap ended the trial",
    "pruned": "the trial was stopped early",
    "diverged": "the trial diverged",
}


def verdicts(study: Study, folder: StudyFolder, plan: Sequence[Planned]) -> list[Verdict]:
    """Return one verdict per falsifier, arm it applies to, and seed, in that order.

    A record of another configuration than the cell's (an edited study, other ``--set`` values) is no evidence.
    Raises `Damaged` for a record or a series that is not what was written; a claim whose series or evaluation is no
    longer in the store is NOT TESTED (commands that judge call `studies.execution.recorded.refuse_lost` first).
    """
    found = []
    for falsifier in study.falsifiers:
        arms = [arm for arm in study.arm_overrides() if falsifier.applies_to(arm, study.baseline)]
        for cell in (cell for arm in arms for cell in plan if cell.arm == arm):
            record = folder.record(cell.arm, cell.seed)
            if record is None or record.config_digest != cell.digest:
                stale = "the record is of another configuration; run the study again"
                one = untested(falsifier, stale if record else "no record; the trial has not run")
            else:
                one = _judge(study, falsifier, folder, plan, record, Gone)
            found.append(replace(one, arm=cell.arm, seed=cell.seed))
    return found


def read_series(folder: StudyFolder, record: TrialRecord, metric: str) -> Series:
    """A recorded series; empty when the trial left none. Raises `Damaged`, or `Gone` without its artifact."""
    if "train" not in record.stages:
        return Series([], record.steps)
    stepwise = each_step(metric)
    wanted = ["step", metric] + ([UPDATE_STEPS] if stepwise else [])
    columns = read_columns(folder, record, "train", "metrics.parquet", wanted)
    if metric not in columns:
        return Series([], record.steps)
    steps = columns["step"]  # what a step did not record is NaN
    gap = _gap(_records(steps, columns[UPDATE_STEPS])) if stepwise and UPDATE_STEPS in columns else None
    return Series(_records(steps, columns[metric]), max([record.steps, *map(int, steps)]), gap)


def _records(steps: Iterable[float], values: Iterable[float | None]) -> list[Record]:
    both = zip(steps, values, strict=True)
    return [(int(step), float(value)) for step, value in both if value is not None and value == value]


def _gap(updates: Sequence[Record]) -> int | None:
    """The first planned step that was left out, from the planned step at each update's end and the steps it took."""
    per = min((end for end, _ in updates), default=0)
    return min((end - per + int(taken) + 1 for end, taken in updates if taken < per), default=None)


def of_record(study: Study, folder: StudyFolder, record: TrialRecord, plan: Sequence[Planned] = ()) -> list[Verdict]:
    """Judge the record of a trial by every falsifier that applies to its arm, whatever configuration the record is of.

    What is relative to the baseline is judged against the baseline's trial in `plan`, once that has ended; it is NOT
    TESTED while results of the two are lost or damaged, since the study may be about to build them again. Of all other
    claims, raises `Damaged`, and `Gone` for a series that is no longer in the store.
    """
    return [
        _judge(study, claim, folder, plan, record, Damaged if claim.relative_to else Gone if claim.evaluated else ())
        for claim in claims_on(study, record.arm)
    ]


def evidence(study: Study, folder: StudyFolder, plan: Sequence[Planned]) -> list[TrialRecord]:
    """The records that `verdicts` judges, and those of the baseline that they are compared with."""
    compared = any(falsifier.relative_to for falsifier in study.falsifiers)
    judged = [cell for cell in plan if claims_on(study, cell.arm) or (compared and cell.arm == study.baseline)]
    recorded = [(cell, folder.record(cell.arm, cell.seed)) for cell in judged]
    return [record for cell, record in recorded if record is not None and record.config_digest == cell.digest]


def stages_read(falsifiers: Iterable[Falsifier]) -> list[str]:
    """The stages whose results the verdicts on these claims are read from, beside the records."""
    given = list(falsifiers)
    series, prompts = any(not one.evaluated for one in given), any(reads_prompts(one) for one in given)
    return ["train"] * series + ["evaluate"] * prompts


def claims_on(study: Study, arm: str) -> list[Falsifier]:
    """The falsifiers that apply to an arm: none to a search's trials, which look for something to claim."""
    if study.search is not None and arm.startswith(SEARCH):
        return []
    return [falsifier for falsifier in study.falsifiers if falsifier.applies_to(arm, study.baseline)]


def partner(study: Study, folder: StudyFolder, plan: Sequence[Planned], seed: int) -> TrialRecord | str:
    """The record of the baseline's trial with a seed, as it is configured now; or in words why there is none."""
    cell = next((cell for cell in plan if (cell.arm, cell.seed) == (study.baseline, seed)), None)
    record = folder.record(cell.arm, cell.seed) if cell else None
    if cell is None or record is None:
        return f"the baseline has no record with seed {seed}"
    if record.config_digest != cell.digest:
        return f"the baseline's record with seed {seed} is of another configuration; run the study again"
    return f"the baseline's trial failed: {record.reason}" if record.status == "failed" else record


def _judge(
    study: Study,
    falsifier: Falsifier,
    folder: StudyFolder,
    plan: Sequence[Planned],
    record: TrialRecord,
    tolerated: type[Damaged] | tuple[()],
) -> Verdict:
    """Judge one record by a falsifier; the claim is NOT TESTED where `tolerated` is raised."""
    try:
        judge_it = _of_evaluation if falsifier.evaluated else _of_series
        base = partner(study, folder, plan, record.seed) if falsifier.relative_to else None
        found = untested(falsifier, base) if isinstance(base, str) else judge_it(falsifier, folder, record, base)
    except tolerated as error:
        found = untested(falsifier, str(error))
    return replace(found, arm=record.arm, seed=record.seed)


def _of_series(falsifier: Falsifier, folder: StudyFolder, record: TrialRecord, base: TrialRecord | None) -> Verdict:
    series = read_series(folder, record, falsifier.metric)
    if not series.records and record.status == "failed":
        return untested(falsifier, f"the trial failed: {record.reason}")
    if base is None:
        found = evaluate(falsifier, series.records, series.steps, gap=series.gap)
    else:
        found = compare(falsifier, series, read_series(folder, base, falsifier.metric))
    return replace(found, run=record.stages["train"].key if "train" in record.stages else None)


def _of_evaluation(falsifier: Falsifier, folder: StudyFolder, record: TrialRecord, base: TrialRecord | None) -> Verdict:
    own = evaluation(falsifier, folder, record)
    if isinstance(own, str):
        return untested(falsifier, own)
    theirs = evaluation(falsifier, folder, base) if base is not None else None
    if isinstance(theirs, str):
        return untested(falsifier, f"of the baseline, {theirs}")
    found = judge(falsifier, own, theirs)
    return replace(found, run=record.stages["evaluate"].key if "evaluate" in record.stages else None)


def reads_prompts(falsifier: Falsifier) -> bool:
    """Return whether a claim needs the outcomes of single prompts."""
    return falsifier.evaluated and falsifier.bound is not None


def evaluation(falsifier: Falsifier, folder: StudyFolder, record: TrialRecord) -> Evaluation | str:
    """The evaluation of a trial as far as a claim needs it, or in words why there is none.

    A trial that ended before its time and was evaluated is judged as it was then. Raises `Damaged`, or `Gone` without
    the table of prompts that an interval needs.
    """
    value = record.summary.get(falsifier.metric)
    if value is None and record.status == "failed":
        return f"the trial failed: {record.reason}"
    if value is None:
        none = f"the trial was not evaluated ({record.status})"
        return f"the evaluation has no {falsifier.metric}" if record.summary else none
    ended = f"{_STOPPED[record.status]} after {record.steps} gradient steps" if record.status in _STOPPED else ""
    if not reads_prompts(falsifier):
        return Evaluation(value, ended=ended)
    outcomes = _outcomes(falsifier.metric, folder, record)
    if isinstance(outcomes, str):
        return outcomes
    low, high = (record.summary.get(f"{falsifier.metric}_{end}") for end in ("low", "high"))  # of win rates
    return Evaluation(value, outcomes, None if low is None or high is None else (low, high), ended)


def _outcomes(metric: str, folder: StudyFolder, record: TrialRecord) -> Outcomes | str:
    """The rows of ``prompts.parquet`` that have the metric."""
    both = per_prompt(metric)
    if both is None:
        return f"no interval: {metric} exists once per trial"
    wanted = ["prompt_id", *filter(None, both)]
    there = "evaluate" in record.stages
    columns = read_columns(folder, record, "evaluate", "prompts.parquet", wanted) if there else {}
    if not set(wanted) <= columns.keys():
        return f"no interval: the trial left no outcomes by prompt of {metric}"
    prompts = np.array(columns["prompt_id"], dtype=np.int64)
    # What an imported prompt lacks is None or NaN.
    numbers = [[math.nan if value is None else float(value) for value in columns[key]] for key in wanted[1:]]
    values = np.array([*numbers, [1.0] * len(prompts)][:2])
    whole = np.isfinite(values).all(0)
    return Outcomes(prompts[whole], values[0, whole], values[1, whole])
