"""A trial's record of its training: `metrics.jsonl`, the truth that everything else is made from.

Training writes the file without MLflow, which is sent the file's tail (`studies.tracking.runs`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.config.trial import canonical_json
from pipeline.run.metrics import METRICS, check_keys


class MetricsLog:
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
        """Flush and close."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
