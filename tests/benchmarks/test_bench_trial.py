"""Where the time of a trial goes, each phase as a fraction of the measured matrix-product peak; and the front door's start-up.

Run by `make bench`. Nothing is asserted about wall time: machines are shared and noisy, so ratios of one run are what counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder

from pipeline import dag
from pipeline.artifacts import Store
from pipeline.config import load_config
from pipeline.stages import STAGES
from pipeline.stages.ppo import ppo
from pipeline.tracking import MetricsLog
from pipeline.trial import prepare


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """Median over repeats, after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_flops() -> float:
    """fp32 matrix products of this process's threads, FLOP/s."""
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds(lambda: a @ a)


def test_phases_of_a_tiny_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("tiny", {"ppo.steps": 256, "reward.pairs": 512, "sft.steps": 100})
    prepare(config)
    inputs = dag.run(STAGES, config, Store(tmp_path / "store"), Recorder(), until="reward")
    out = tmp_path / "ppo"
    out.mkdir()
    start = time.perf_counter()
    ppo(config, out, Recorder(), **inputs)
    wall = time.perf_counter() - start
    peak = peak_flops()
    cost = json.loads((out / "log" / "cost.json").read_text())
    with capsys.disabled():
        print(f"\ntiny, {config.ppo.steps} steps, {torch.get_num_threads()} thread(s), fp32 peak {peak / 1e9:.0f} GFLOP/s")
        for phase in ("generate", "score", "train"):
            print(f"  {phase:9s} {cost[f'{phase}_s']:6.2f} s  {cost[f'{phase}_s'] / wall:6.1%} of the trial")
        print(f"  {'rest':9s} {wall - cost['wall_s']:6.2f} s  (loading, metrics, checkpoints, saving)")
        episodes = config.ppo.updates * config.ppo.batch_size
        print(f"  {episodes / cost['wall_s']:.0f} episodes/s, {config.ppo.steps / wall:.0f} gradient steps/s")
        print(f"  {cost['tflop'] * 1e12 / cost['wall_s'] / peak:.0%} of the peak, counted FLOPs over wall time")


def test_metric_logging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = 2_048
    values = {f"policy/{name}": 0.123456789 for name in ("pg_loss", "approxkl", "entropy", "ratio", "grad_norm", "lr")}

    def write() -> None:
        with MetricsLog(tmp_path / "metrics.jsonl") as log:
            for step in range(rows):
                log.append(step, values)

    with capsys.disabled():
        print(f"\nmetrics.jsonl: {seconds(write) / rows * 1e6:.0f} us a gradient step")


def test_start_up(capsys: pytest.CaptureFixture[str]) -> None:
    front_door = Path(__file__).parents[2] / "ablate.py"
    spent = seconds(lambda: subprocess.run([sys.executable, front_door, "--help"], check=True, capture_output=True))
    with capsys.disabled():
        print(f"\nablate --help: {spent:.2f} s")
