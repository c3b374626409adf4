"""The tables of a trial's artifacts as frames: read, checked and cleaned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from pipeline.errors import Damaged, Gone
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.metrics import is_measured, known
from pipeline.run.store import file_of
from studies.definition.schema import IMPORTED
from studies.definition.trainer import TRAINER

_NUMBERS = (
    "policy_gold", "policy_proxy", "policy_length", "win", "tie", "reference_gold", "reference_gold_std",
    "reference_proxy", "reference_length", "kl", "entropy",
)  # fmt: skip
ANSWER_COLUMNS = ("prompt_id", "policy_eos", "reference_eos", *_NUMBERS)
"""Read of every prompt of every trial."""
PROXY_COLUMNS = ("win_proxy", "agree", "decided")
"""Judgements of the same pairs by the proxy, read as well; imported outcomes can lack them."""
PROMPT_COLUMNS = (
    "prompt_id", "prompt", "policy_completion", "policy_gold", "policy_proxy", "policy_length", "policy_eos", "win",
    "tie", "reference_gold", "reference_gold_std", "reference_proxy", "reference_length", "reference_eos",
    "reference_completion", "reference_completion_gold", "reference_completion_proxy", "kl", "entropy",
)  # fmt: skip
"""Read of the samples, with their texts and the scores of the answer that is shown."""
_AGAIN = "run the study again to rebuild it"


def read_curves(folder: StudyFolder, record: TrialRecord, notes: list[str]) -> pd.DataFrame | None:
    """Return arm, seed, step and the known metrics; of two records at one step the last, and NaN for non-finite values.

    None where there is no table.
    """
    path = _path(folder, record, "train", "metrics.parquet", notes)
    if path is None:
        return None
    frame = _read(path, lambda column: column == "step" or known(column))
    if "step" not in frame.columns:
        raise Damaged(path, "no column step", _AGAIN)
    steps = frame.pop("step").astype(np.int64)
    values = frame.astype(np.float64)
    values = values.where(np.isfinite(values))
    values.insert(0, "step", steps)
    values = values.drop_duplicates("step", keep="last").sort_values("step")
    return values.assign(arm=record.arm, seed=record.seed)


def read_answers(folder: StudyFolder, record: TrialRecord, notes: list[str]) -> pd.DataFrame | None:
    """Return `ANSWER_COLUMNS`, `PROXY_COLUMNS` and the other columns of metrics, prompt by prompt; None
    where there is no table, or no row in it."""
    path = _path(folder, record, "evaluate", "prompts.parquet", notes)
    if path is None:
        return None
    wanted = (*ANSWER_COLUMNS, *PROXY_COLUMNS)
    frame = _read(path, lambda column: column in wanted or is_measured(column))
    absent = [column for column in wanted if column not in frame.columns]
    foreign = record.profile in (IMPORTED, TRAINER)  # outcomes of other programs can lack columns
    if absent and (not foreign or "prompt_id" in absent):
        raise Damaged(path, f"no column {', '.join(absent)}", _AGAIN)
    if not frame.get("decided", pd.Series([1.0])).any():
        frame = frame.drop(columns=["agree", "decided"], errors="ignore")  # a share of no pairs is no result
    return frame.assign(arm=record.arm, seed=record.seed) if len(frame) else None


def read_samples(folder: StudyFolder, record: TrialRecord, notes: list[str]) -> pd.DataFrame | None:
    """Return the table of samples with its texts; None where there is none."""
    path = _path(folder, record, "evaluate", "samples.parquet", notes)
    return _read(path, PROMPT_COLUMNS.__contains__).assign(arm=record.arm, seed=record.seed) if path else None


def together(tables: Sequence[pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    """Put the tables of trials on top of each other: arm, seed, these columns, and all others that some hold."""
    first = ["arm", "seed", *columns]
    if not tables:
        return pd.DataFrame({column: pd.Series(dtype=object) for column in first})
    whole = pd.concat(tables, ignore_index=True)
    return whole.reindex(columns=list(dict.fromkeys([*first, *whole.columns])))


def _path(folder: StudyFolder, record: TrialRecord, stage: str, name: str, notes: list[str]) -> Path | None:
    if stage not in record.stages:
        return None
    try:
        return file_of(folder, record, stage, name)
    except Gone:
        what = f"Arm {record.arm} seed {record.seed}: {stage}/{name}"
        notes.append(f"{what} is no longer in the store, so the page does without it.")
        return None


def _read(path: Path, wanted: Callable[[str], bool]) -> pd.DataFrame:
    with pq.ParquetFile(path) as file:
        columns = [column for column in file.schema_arrow.names if wanted(column)]
        frame: pd.DataFrame = file.read(columns, use_threads=False).to_pandas()
        return frame
