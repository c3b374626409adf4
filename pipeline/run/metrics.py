"""The closed list of metrics, which is `metrics.csv`, and a trial's record of its training, `metrics.jsonl`.

Nothing outside the list may be logged; the rows at its end are families. Training writes the file without MLflow, which
is sent the file's tail (`studies.tracking.runs`).

Two cadences. Series under ``objective/`` and ``reward/`` are measured on a rollout and stand at the number of gradient
steps planned before it (0 for the reference itself); series under ``policy/``, ``value/`` and ``pairs/`` stand at the
gradient step in whose mini-batch they were measured (1 for the first). Steps that the target-KL stop leaves out are
counted, and have no record. ``eval/`` and ``cost/`` are of a whole trial; of the costs in its record those are listed
here that a hypothesis can name.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from pipeline.config.trial import canonical_json

Direction = Literal["maximize", "minimize"]
ON_ROLLOUT = ("objective/", "reward/", "replay/", "value/explained_variance")
"""Heads of the series that have one record an update, measured on its rollout."""
UPDATE_STEPS = "policy/update_steps"
FEWEST_OF_LAW = 20
"""Fewest updates of a training to which a law is fitted (`pipeline.stages.laws`)."""
SCORES = ("std of reference samples", "judge points")
"""Units of scores that this program calibrates or judges."""
_FOREIGN = ContextVar("_FOREIGN", default=False)


@contextmanager
def scores_as_logged(foreign: bool) -> Iterator[None]:
    """Show scores without a unit of ours meanwhile, where another program logged them."""
    token = _FOREIGN.set(foreign)
    try:
        yield
    finally:
        _FOREIGN.reset(token)


@dataclass(frozen=True)
class Metric:
    """One named quantity. `low` and `high` bound what a correct trial can show."""

    key: str
    own_unit: str
    formula: str
    low: float = -math.inf
    high: float = math.inf
    direction: Direction | None = None
    """The better direction in every study; None where it depends on the study's question."""
    columns: tuple[str, str | None] | None = None
    """Column of an evaluation's ``prompts.parquet`` whose mean over prompts is the metric, and the column of the
    denominator where it is a ratio of two sums."""

    @property
    def unit(self) -> str:
        """Its unit, or within `scores_as_logged` "as logged" for a score."""
        return "as logged" if _FOREIGN.get() and self.own_unit in SCORES else self.own_unit

    @property
    def label(self) -> str:
        return f"{self.key} [{self.unit}]"


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = [
        Metric(
            row["key"],
            row["unit"],
            row["formula"],
            float(row["low"] or -math.inf),
            float(row["high"] or math.inf),
            cast(Direction | None, row["direction"] or None),
            (row["column"], row["denominator"] or None) if row["column"] else None,
        )
        for row in csv.DictReader(_file)
    ]
FAMILIES = tuple(row for row in _ROWS if row.key.endswith(">"))
"""Metrics of which there is one for every part of a composite reward, or for every further judge, by the names that the
user gave them."""
_PART = re.compile(r"[a-z][a-z0-9_]*")


def _head(key: str) -> str:
    return key[: key.rindex("/") + 1] if "/" in key else ""


class _Metrics(dict[str, Metric]):
    """The list; a member of a family can be looked up as well, but is not listed."""

    def __missing__(self, key: str) -> Metric:
        for metric in FAMILIES:
            if _head(metric.key) == _head(key) and _PART.fullmatch(key.removeprefix(_head(key))):
                return replace(metric, key=key)
        raise KeyError(key)


METRICS: dict[str, Metric] = _Metrics({row.key: row for row in _ROWS if row not in FAMILIES})
PER_PROMPT = {row.key: row.columns for row in METRICS.values() if row.columns}
"""Metrics that are a mean over prompts, or a ratio of two sums over prompts: numerator and denominator column of an
evaluation's ``prompts.parquet``."""
BY_FAMILY = {_head(row.key): row.columns for row in FAMILIES if row.columns}
"""The same of families, by the heads of their members' names; a member's own name ends that of its columns."""


def per_prompt(key: str) -> tuple[str, str | None] | None:
    """The columns of ``prompts.parquet`` that a metric is made of, numerator and denominator; None of one that exists
    once per trial.

    >>> per_prompt("eval/gold"), per_prompt("eval/gold/harmless"), per_prompt("eval/distinct_1")
    (('policy_gold', None), ('policy_gold/harmless', None), None)
    """
    if not (columns := BY_FAMILY.get(_head(key))):
        return PER_PROMPT.get(key)
    above, below = (column and _head(column) + key.removeprefix(_head(key)) for column in columns)
    return str(above), below


_COLUMNS = {column for pair in PER_PROMPT.values() for column in pair}
_HEADS = tuple(_head(column) for pair in BY_FAMILY.values() for column in pair if column)


def is_measured(column: str) -> bool:
    """Return whether some metric is made of a column of ``prompts.parquet``."""
    return column in _COLUMNS or column.startswith(_HEADS)


def measured_in(columns: Iterable[str]) -> dict[str, tuple[str, str | None]]:
    """The metrics that such columns of ``prompts.parquet`` give, each with its numerator and denominator.

    >>> measured_in(["win", "policy_gold/harmless"])
    {'eval/win_rate': ('win', None), 'eval/gold/harmless': ('policy_gold/harmless', None)}
    """
    there = list(columns)
    found = {key: pair for key, pair in PER_PROMPT.items() if pair[0] in there}
    for head, (above, _) in BY_FAMILY.items():
        names = [column.removeprefix(_head(above)) for column in there if column.startswith(_head(above))]
        found |= {head + name: pair for name in names if (pair := per_prompt(head + name))}
    return found


def each_step(key: str) -> bool:
    """Return whether a series has a record at each gradient step that is taken.

    >>> each_step("policy/approxkl"), each_step("policy/old_kl"), each_step("objective/kl")
    (True, False, False)
    """
    return not key.startswith((*ON_ROLLOUT, "eval/", "cost/")) and key not in ("policy/old_kl", UPDATE_STEPS)


def known(key: str) -> bool:
    """Return whether a key is in the list or in a family."""
    try:
        return bool(METRICS[key])
    except KeyError:
        return False


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys outside the list: a fault of ours, so a `KeyError`."""
    unknown = sorted(key for key in keys if not known(key))
    if unknown:
        raise KeyError(f"not in pipeline/run/metrics.csv: {', '.join(unknown)}")


class MetricsLog(AbstractContextManager["MetricsLog"]):
    """Append-only writer of ``metrics.jsonl``: one canonical JSON object a line, ``{"step": int, key: float}``."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Start an empty file, or go on after a checkpoint: what was written behind its `offset` is cut off and will be
        written again.

        Raises `ValueError` when the file cannot be the one that the checkpoint is about.
        """
        kept = path.read_bytes()[:offset] if offset else b""
        if len(kept) < offset or (offset and not kept.endswith(b"\n")):
            raise ValueError(f"{path} has no line that ends at byte {offset}; the checkpoint is of another file")
        self._file = path.open("r+b" if offset else "w+b")
        self._file.truncate(offset)
        self._file.seek(offset)
        self.offset = offset
        """Bytes so far; a checkpoint keeps it."""

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Add one row. Raises `KeyError` for a key that is no metric and `ValueError` for a value that is not
        finite."""
        check_keys(values)
        row = {key: float(value) for key, value in values.items()}
        bad = sorted(key for key, value in row.items() if not math.isfinite(value))
        if bad:
            raise ValueError(f"not finite at step {step}: {', '.join(f'{key} = {row[key]}' for key in bad)}")
        self.offset += self._file.write(canonical_json({"step": int(step), **row}).encode() + b"\n")

    def flush(self, *, durable: bool = True) -> None:
        """Let readers see everything appended; `durable` also puts it on the disk, before a checkpoint refers to it."""
        self._file.flush()
        if durable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._file:
            self.flush()

    def __exit__(self, *error: object) -> None:
        self.close()


def merged(path: Path) -> dict[int, dict[str, float]]:
    """Rows of a ``metrics.jsonl`` merged by step, in order of steps; of two values of a key at a step the last counts.

    An unfinished last line is left out. Raises `ValueError` with the line of a damaged row.
    """
    steps: dict[int, dict[str, float]] = {}
    complete = path.read_bytes().rpartition(b"\n")[0]
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            row = json.loads(line)
            steps.setdefault(int(row.pop("step")), {}).update(row)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path}, line {number}: not a row of metrics") from None
    return dict(sorted(steps.items()))


def to_parquet(jsonl: Path, parquet: Path) -> None:
    """Write the merged rows as columns: `step` (int64), then one float64 column per recorded metric, NaN where not
    recorded."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps = merged(jsonl)
    seen = {key for row in steps.values() for key in row}
    columns: dict[str, Any] = {"step": np.fromiter(steps, dtype=np.int64, count=len(steps))}
    for key in [*METRICS, *sorted(seen - METRICS.keys())]:
        if key in seen:
            columns[key] = np.fromiter(
                (row.get(key, math.nan) for row in steps.values()), dtype=np.float64, count=len(steps)
            )
    pq.write_table(pa.table(columns), parquet)
