"""Verdicts of a study from what is recorded: no training, no torch, nothing but files."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import Gone
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.store import file_of
from studies.claims.falsifiers import Verdict, evaluate, untested
from studies.definition.design import Planned
from studies.definition.schema import Falsifier, Study
from studies.definition.search import SEARCH


def verdicts(study: Study, folder: StudyFolder, plan: Sequence[Planned], *, missing_ok: bool = False) -> list[Verdict]:
    """One verdict per falsifier, arm it speaks of, and seed, in that order.

    A record of another configuration than the cell's (an edited study, other ``--set`` values) is no evidence.
    Raises `Damaged` for a record or a series that is not what was written, and `Gone` for a series that is no longer in
    the store; with `missing_ok` the latter is NOT TESTED.
    """
    result = []
    for falsifier in study.falsifiers:
        for arm in study.arm_overrides():
            if falsifier.applies_to(arm):
                result += [_verdict(falsifier, folder, cell, missing_ok) for cell in plan if cell.arm == arm]
    return result


def read_series(folder: StudyFolder, record: TrialRecord, metric: str) -> list[tuple[int, float]]:
    """A recorded series as ``(gradient step, value)``; empty when the trial left none. Raises `Damaged`, or `Gone`
    without its artifact."""
    import pyarrow.parquet as pq

    if "train" not in record.stages:
        return []
    with pq.ParquetFile(file_of(folder, record, "train", "metrics.parquet")) as file:
        if metric not in file.schema_arrow.names:
            return []
        table = file.read(["step", metric], use_threads=False)
    # As lists: pyarrow imports pandas to make an array. What a step did not record is NaN here.
    steps, values = (table[key].to_pylist() for key in ("step", metric))
    return [
        (int(step), float(value))
        for step, value in zip(steps, values, strict=True)
        if value is not None and value == value
    ]


def of_record(study: Study, folder: StudyFolder, record: TrialRecord) -> list[Verdict]:
    """What every falsifier that speaks of a trial's arm says about its record, whatever configuration it is of."""
    return [_of_record(falsifier, folder, record) for falsifier in claims_on(study, record.arm)]


def evidence(study: Study, folder: StudyFolder, plan: Sequence[Planned]) -> list[TrialRecord]:
    """The records that `verdicts` judges."""
    recorded = [(cell, folder.record(cell.arm, cell.seed)) for cell in plan if claims_on(study, cell.arm)]
    return [record for cell, record in recorded if record is not None and record.config_digest == cell.digest]


def claims_on(study: Study, arm: str) -> list[Falsifier]:
    """The falsifiers that speak of an arm. None speaks of a search's trials: they look for what to claim."""
    if study.search is not None and arm.startswith(SEARCH):
        return []
    return [falsifier for falsifier in study.falsifiers if falsifier.applies_to(arm)]


def _verdict(falsifier: Falsifier, folder: StudyFolder, cell: Planned, missing_ok: bool) -> Verdict:
    record = folder.record(cell.arm, cell.seed)
    if record is None:
        return untested(falsifier, cell.arm, cell.seed, "no record; the trial has not run")
    if record.config_digest != cell.digest:
        return untested(falsifier, cell.arm, cell.seed, "the record is of another configuration; run the study again")
    try:
        return _of_record(falsifier, folder, record)
    except Gone as error:
        if not missing_ok:
            raise
        return untested(falsifier, cell.arm, cell.seed, str(error))


def _of_record(falsifier: Falsifier, folder: StudyFolder, record: TrialRecord) -> Verdict:
    series = read_series(folder, record, falsifier.metric)
    if not series and record.status == "failed":
        return untested(falsifier, record.arm, record.seed, f"the trial failed: {record.reason}")
    run = record.stages["train"].key if "train" in record.stages else None
    return evaluate(falsifier, series, record.steps, arm=record.arm, seed=record.seed, run=run)
