"""The tables that a trial's artifacts hold: read, checked and cleaned. Columns stay arrays until all trials are put
together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import Damaged, Gone
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.metrics import BY_FAMILY, known
from pipeline.run.store import file_of
from studies.definition.schema import IMPORTED

PROMPT_COLUMNS = (
    "prompt_id", "prompt", "policy_completion", "policy_gold", "policy_proxy", "policy_length", "policy_eos", "win",
    "tie",
    "reference_gold", "reference_gold_std", "reference_proxy", "reference_length", "reference_eos",
    "reference_completion",
    "reference_completion_gold", "reference_completion_proxy", "kl", "entropy",
)  # fmt: skip
_EXAMPLES = (
    "prompt",
    "policy_completion",
    "reference_completion",
    "reference_completion_gold",
    "reference_completion_proxy",
)
ANSWER_COLUMNS = tuple(column for column in PROMPT_COLUMNS if column not in _EXAMPLES)
"""What is read of every prompt of every trial; texts and the scores of the one that is shown are read of the samples
alone."""
PROXY_COLUMNS = ("win_proxy", "agree", "decided")
"""How the proxy judges the same pairs, read as well; imported outcomes can lack them altogether."""
OF_FAMILIES = tuple(BY_FAMILY.values())
"""Heads of the columns of what the parts of a composite reward and further judges say; they are read as well."""
SHARES = ("win", "tie", "win_proxy")
"""Of a prompt: the share of the reference's draws that the policy beats, ties counting half, by the judge; the share of
ties; and the first by the proxy."""
_FLAGS = ("prompt_id", "policy_eos", "reference_eos")
_NUMBERS = tuple(column for column in (*ANSWER_COLUMNS, *PROXY_COLUMNS) if column not in _FLAGS)
_AGAIN = "run the study again to rebuild it"

Series = Mapping[str, NDArray[np.float64]]
"""Column -> values in the order of gradient steps, `step` among them."""


@dataclass
class Stacked:
    """The series of several trials on top of each other, to become one frame at the end."""

    trials: list[tuple[str, int, Series]] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """arm, seed, step and every metric that some trial recorded; NaN where a trial did not."""
        if not self.trials:
            return pd.DataFrame({column: pd.Series(dtype=object) for column in ("arm", "seed", "step")})
        lengths = [len(series["step"]) for _, _, series in self.trials]
        keys = list(dict.fromkeys(key for _, _, series in self.trials for key in series if key != "step"))
        columns: dict[str, object] = {
            "arm": pd.Series(
                np.repeat(np.array([arm for arm, _, _ in self.trials], dtype=object), lengths), dtype="str"
            ),
            "seed": np.repeat([seed for _, seed, _ in self.trials], lengths),
            "step": np.concatenate([series["step"] for _, _, series in self.trials]).astype(np.int64),
        }
        for key in keys:
            parts = [
                series.get(key, np.full(n, np.nan)) for (_, _, series), n in zip(self.trials, lengths, strict=True)
            ]
            columns[key] = np.concatenate(parts)
        return pd.DataFrame(columns, copy=False)


def read_curves(folder: StudyFolder, record: TrialRecord, notes: list[str]) -> Series | None:
    """Known metrics by gradient step, of two records at one step the last; what is not finite is NaN. None where there
    is no table."""
    path = _path(folder, record, "train", "metrics.parquet", notes)
    if path is None:
        return None
    table = _read(path, lambda column: column == "step" or known(column))
    if "step" not in table.column_names:
        raise Damaged(path, "no column step", _AGAIN)
    columns = {key: _floats(table, key) for key in table.column_names}
    steps = columns["step"]
    if len(steps) > 1 and not (np.diff(steps) > 0).all():
        order = np.argsort(steps, kind="stable")
        order = order[np.append(np.diff(steps[order]) > 0, True)]
        columns = {key: values[order] for key, values in columns.items()}
    return columns


def read_answers(folder: StudyFolder, record: TrialRecord, notes: list[str]) -> pa.Table | None:
    """`ANSWER_COLUMNS`, `PROXY_COLUMNS`, the parts of the reward and the further judges, prompt by prompt;
    None where there is no table, or no row in it."""
    path = _path(folder, record, "evaluate", "prompts.parquet", notes)
    if path is None:
        return None
    table = _read(path, lambda column: column in (*ANSWER_COLUMNS, *PROXY_COLUMNS) or column.startswith(OF_FAMILIES))
    imported = record.profile == IMPORTED
    return _labelled(_decided(_checked(table, path, gaps=imported)), record) if table.num_rows else None


def read_samples(folder: StudyFolder, record: TrialRecord, notes: list[str]) -> pa.Table | None:
    """The table of samples with its texts; None where there is none."""
    path = _path(folder, record, "evaluate", "samples.parquet", notes)
    return None if path is None else _labelled(_read(path, PROMPT_COLUMNS.__contains__), record)


def together(tables: list[pa.Table], columns: Sequence[str]) -> pd.DataFrame:
    """Tables of several trials on top of each other: arm, seed, these columns, and what else some of them hold."""
    first = ["arm", "seed", *columns]
    if not tables:
        return pd.DataFrame({column: pd.Series(dtype=object) for column in first})
    whole: pd.DataFrame = pa.concat_tables(
        [table.replace_schema_metadata() for table in tables], promote_options="permissive"
    ).to_pandas()
    return whole.reindex(columns=[*first, *[column for column in whole.columns if column not in first]])


def _decided(table: pa.Table) -> pa.Table:
    """The table without its counts of pairs where the judge decided none: a share of nothing is no result."""
    counts = [column for column in ("agree", "decided") if column in table.column_names]
    none = len(counts) == 2 and not table["decided"].to_numpy().any()
    return table.drop_columns(counts) if none else table


def _labelled(table: pa.Table, record: TrialRecord) -> pa.Table:
    rows = table.num_rows
    return table.append_column("arm", pa.array([record.arm] * rows)).append_column(
        "seed", pa.array([record.seed] * rows, pa.int64())
    )


def _path(folder: StudyFolder, record: TrialRecord, stage: str, name: str, notes: list[str]) -> Path | None:
    if stage not in record.stages:
        return None
    with suppress(Gone):
        return file_of(folder, record, stage, name)
    notes.append(
        f"Arm {record.arm} seed {record.seed}: {stage}/{name} is no longer in the store, so the page does without it."
    )
    return None


def _read(path: Path, wanted: Callable[[str], bool]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read([column for column in file.schema_arrow.names if wanted(column)], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(path, str(error).splitlines()[0], _AGAIN) from None


def _floats(table: pa.Table, key: str) -> NDArray[np.float64]:
    values = table[key].to_numpy().astype(np.float64, copy=False)
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.nan)


def _checked(table: pa.Table, path: Path, *, gaps: bool) -> pa.Table:
    """The table of an evaluation; what other programs published can lack columns and values (`gaps`)."""
    absent = [column for column in (*ANSWER_COLUMNS, *PROXY_COLUMNS) if column not in table.column_names]
    if absent and (not gaps or "prompt_id" in absent):
        raise Damaged(path, f"no column {', '.join(absent)}", _AGAIN)
    for column in [column for column in _NUMBERS if column in table.column_names and not gaps]:
        bad = int((~np.isfinite(table[column].to_numpy().astype(np.float64, copy=False))).sum())
        if bad:
            raise Damaged(path, f"{bad} values of {column} are not finite", _AGAIN)
    for column in [column for column in SHARES if column in table.column_names]:
        shares = table[column].to_numpy()
        if bool(((shares < 0) | (shares > 1)).any()):
            raise Damaged(path, f"{column} is not between 0 and 1 everywhere", _AGAIN)
    if len(table["prompt_id"].unique()) < table.num_rows:
        raise Damaged(path, "a prompt_id stands in more than one row", _AGAIN)
    return table
