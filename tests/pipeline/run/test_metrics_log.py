from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.run.metrics import MetricsLog, merged, to_parquet


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_rows_are_canonical_lines_with_exact_floats(log: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(16, {"policy/entropy": 0.1 + 0.2, "objective/kl": np.float32(0.1)})
        assert metrics.offset > 0
    row = json.loads(log.read_text())
    assert row == {"step": 16, "policy/entropy": 0.1 + 0.2, "objective/kl": float(np.float32(0.1))}
    assert list(row) == sorted(row)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused_and_leave_no_trace(log: Path, value: float) -> None:
    with MetricsLog(log) as metrics:
        with pytest.raises(ValueError, match=r"not finite at step 3: objective/kl"):
            metrics.append(3, {"objective/kl": value, "objective/gold": 1.0})
        assert metrics.offset == 0
    assert log.read_bytes() == b""


def test_resume_cuts_what_the_checkpoint_does_not_know(log: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(1, {"objective/kl": 1.0})
        offset = metrics.offset
        metrics.append(2, {"objective/kl": 2.0})
    uninterrupted = log.read_bytes()
    with log.open("ab") as file:
        file.write(b'{"step": 3, "objec')
    with MetricsLog(log, offset) as metrics:
        assert metrics.offset == offset
        assert [*merged(log)] == [1]
        metrics.append(2, {"objective/kl": 2.0})
    assert log.read_bytes() == uninterrupted


def test_resume_refuses_another_file(log: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(1, {"objective/kl": 1.0})
        offset = metrics.offset
    for wrong in (offset + 1, offset - 1):
        with pytest.raises(ValueError, match="the checkpoint is of another file"):
            MetricsLog(log, wrong)
    assert log.stat().st_size == offset
    MetricsLog(log, 0).close()
    assert log.stat().st_size == 0
    with pytest.raises(ValueError, match="another file"):
        MetricsLog(log, 5)


def test_reading_leaves_out_half_a_line_and_names_a_damaged_one(log: Path) -> None:
    log.write_text('{"step":1,"objective/kl":1.0}\n{"step":2,"obj')
    assert merged(log) == {1: {"objective/kl": 1.0}}
    log.write_text('{"step":1,"objective/kl":1.0}\nnonsense\n')
    with pytest.raises(ValueError, match="line 2: not a row"):
        merged(log)
    log.write_text("")
    assert merged(log) == {}


def test_parquet_is_merged_by_step(log: Path, tmp_path: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(16, {"policy/entropy": 1.0})
        metrics.append(16, {"objective/kl": 2.0})
        metrics.append(0, {"objective/kl": 0.0})
        metrics.append(16, {"objective/kl": 3.0})
    assert merged(log) == {0: {"objective/kl": 0.0}, 16: {"policy/entropy": 1.0, "objective/kl": 3.0}}
    to_parquet(log, tmp_path / "m.parquet")
    frame = pd.read_parquet(tmp_path / "m.parquet")
    assert list(frame.columns) == ["step", "objective/kl", "policy/entropy"]
    assert [str(kind) for kind in frame.dtypes] == ["int64", "float64", "float64"]
    assert frame["step"].tolist() == [0, 16]
    assert frame["objective/kl"].tolist() == [0.0, 3.0]
    assert math.isnan(frame["policy/entropy"][0])
    assert pq.read_table(tmp_path / "m.parquet")["policy/entropy"].null_count == 0
