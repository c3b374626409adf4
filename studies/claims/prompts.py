"""What a trial's evaluation left for a claim: the metric in its record, and its outcomes prompt by prompt."""

from __future__ import annotations

import math

import numpy as np

from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.metrics import per_prompt
from pipeline.run.store import file_of
from studies.claims.evaluations import Evaluation, Outcomes
from studies.definition.falsifier import Falsifier

_STOPPED = {
    "budget": "a cap ended the trial",
    "pruned": "the trial was stopped early",
    "diverged": "the trial diverged",
}


def reads_prompts(falsifier: Falsifier) -> bool:
    """Whether a claim needs the outcomes of single prompts."""
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
    import pyarrow.parquet as pq

    columns = per_prompt(metric)
    if columns is None:
        return f"no interval: {metric} exists once per trial"
    top, bottom = columns
    wanted = ["prompt_id", top, *([bottom] if bottom else [])]
    if "evaluate" not in record.stages:
        return f"no interval: the trial left no outcomes by prompt of {metric}"
    with pq.ParquetFile(file_of(folder, record, "evaluate", "prompts.parquet")) as file:
        if not set(wanted) <= set(file.schema_arrow.names):
            return f"no interval: the trial left no outcomes by prompt of {metric}"
        table = file.read(wanted, use_threads=False)
    # As lists: pyarrow imports pandas to make an array. What an imported prompt lacks is None or NaN.
    numbers = [[math.nan if value is None else float(value) for value in table[key].to_pylist()] for key in wanted[1:]]
    values = np.array([*numbers, [1.0] * table.num_rows][:2])
    whole = np.isfinite(values).all(0)
    prompts = np.array(table["prompt_id"].to_pylist(), dtype=np.int64)
    return Outcomes(prompts[whole], values[0, whole], values[1, whole])
