"""The benchmark itself, on a run of a second; nothing here asserts how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from benchmarks import meter as meter_module
from benchmarks.meter import Meter
from benchmarks.report import goals

ROOT = Path(__file__).parents[1]


def test_time_goes_to_the_innermost_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: now[0])
    meter = Meter(torch.device("cpu"))
    meter.end_update()
    with meter.timed("train"):
        now[0] += 3
        with meter.timed("log"):
            now[0] += 1
        now[0] += 2
    now[0] += 0.5
    meter.end_update()
    (update,) = meter.result()["updates"]
    assert {phase: seconds for phase, seconds in update.items() if seconds} == {"train": 5, "log": 1, "rest": 0.5}


def test_ratios_are_taken_within_a_round() -> None:
    rows = [("ours-shared", 4.0, 0.4), ("trl-ppo", 1.0, 1.0), ("ours-shared", 8.0, 0.6), ("trl-ppo", 4.0, 1.0)]
    table = pd.DataFrame(rows, columns=["contender", "episodes/s", "peak [GiB]"]).assign(size="32k")
    found = goals(table.assign(round=[0, 0, 1, 1])).set_index("figure")
    assert found.loc["episodes/s", ["ratio", "verdict"]].tolist() == ["3 (2 to 4)", "unclear"]
    assert found.loc["peak [GiB]", ["ratio", "verdict"]].tolist() == ["0.5 (0.4 to 0.6)", "unclear"]


@pytest.mark.slow
def test_all_contenders_run(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "benchmarks", "--size", "smoke", "--rounds", "1", "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = {one["contender"]: one["updates"] for one in json.loads(out.read_text())["runs"]}
    assert list(runs) == ["ours-grpo", "ours-rloo", "ours-shared", "ours-separate", "trl-ppo"]
    for (update,) in runs.values():
        assert min(update[phase] for phase in ("generate", "score", "train")) > 0
