"""The benchmark itself, on a run of a second; nothing here asserts how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHOSEN = ["trl-rloo", "ours-separate"]
"""One of each library, with a critic and without one."""


@pytest.mark.slow
def test_contenders_run(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "benchmarks", "--size", "smoke", "--rounds", "1", "--out", str(out)]
    command += ["--contender", *CHOSEN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = {one["contender"]: one["updates"] for one in json.loads(out.read_text())["runs"]}
    assert list(runs) == CHOSEN
    for (update,) in runs.values():
        assert min(update[phase] for phase in ("generate", "score", "train")) > 0
