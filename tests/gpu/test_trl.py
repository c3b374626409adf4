"""Our trainer and TRL's, one after the other on the same card, through the harness of `make bench`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from gpu.hardware import DEVICE, GIB

ROOMY_GIB = 60.0
"""Memory above which both fit with the shape of Qwen1.5-0.5B: TRL trains a policy and a critic of that size."""


@pytest.mark.gpu
def test_beside_trl_1_12_ppo(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    if lacking := [name for name in ("trl", "datasets") if find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    if DEVICE != "cuda":
        pytest.skip("no CUDA device")
    properties, rows, speeds = torch.cuda.get_device_properties(0), [], {}
    size = "qwen0.5b" if properties.total_memory > ROOMY_GIB * GIB else "32k"
    precision = "bf16" if properties.major >= 8 else "fp16"
    for name in ("ours-shared", "ours-separate", "trl-ppo"):
        words = [name, size, "cuda", precision, "1", str(tmp_path / name)]
        subprocess.run([sys.executable, "-m", "benchmarks.contender", *words], check=True, timeout=80)
        found = json.loads((tmp_path / name).read_text())
        seconds = statistics.median(sum(update["wall"].values()) for update in found["updates"])
        speeds[name], peak = found["episodes"] / seconds, found["peak_bytes"] / GIB
        row = {"contender": name, "seconds an update (median)": seconds, "episodes/s": speeds[name]}
        rows.append(row | {"peak, GiB": peak, "n": len(found["updates"])})
    for name in ("ours-shared", "ours-separate"):
        record_property(f"{name} against trl, episodes/s", f"{speeds[name] / speeds['trl-ppo']:.2f} x")
    note = f"size {size} of tests/benchmarks, {precision}, one process after the other, all responses at full length"
    record_property("notes", [note])
    record_property("ours beside TRL's", rows)
