"""Predicted peak memory against that of real trials; `tests/memory_check.py` measures more sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from memory_check import measure


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what libraries take was measured on Linux")
@pytest.mark.parametrize("size", ["10M", "42M"])
def test_predicted_memory_is_within_15_percent_of_the_measured_peak(tmp_path: Path, size: str) -> None:
    peaks = measure(size, tmp_path)
    # Not that of evaluation: its process has trained before, whose memory it keeps.
    for stage in ("sft", "reward", "train"):
        predicted, measured = peaks[stage]
        assert predicted == pytest.approx(measured, rel=0.15), stage
