"""The benchmark itself, on figures made up and on a run of a second; nothing here asserts how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import __main__ as bench
from benchmarks import meter as meter_module
from benchmarks.contender import CONTENDERS, NEWER_TRL
from benchmarks.meter import CLOCKS, PHASES, Meter
from benchmarks.report import frame, goals, show

ROOT = Path(__file__).parents[1]


class Clock:
    """A clock that a test sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(meter_module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(meter_module.time, "process_time", lambda: self.now / 2)

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_time_goes_to_the_innermost_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    meter = Meter(torch.device("cpu"), measured=1)
    meter.end_update()
    with meter.timed("train"):
        clock.work(3)
        with meter.timed("log"):
            clock.work(1)
        clock.work(2)
    clock.work(0.5)
    meter.end_update()
    meter.end_update()  # the counted one, which takes its hooks off every module again
    (update,) = meter.result()["updates"]
    assert {phase: seconds for phase, seconds in update["wall"].items() if seconds} == {
        "train": 5,
        "log": 1,
        "rest": 0.5,
    }
    assert update["cpu"]["train"] == 2.5


def test_operations_are_counted_in_the_update_after_the_measured_ones() -> None:
    meter = Meter(torch.device("cpu"), measured=1)
    a = torch.randn(8, 16)
    for _ in range(3):
        with meter.timed("train"):
            a @ a.T
        with meter.timed("score"):
            q = torch.randn(1, 1, 4, 8)
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        meter.end_update()
    assert meter.flops["train"] == 2 * 8 * 16 * 8
    assert meter.flops["score"] == 2 * (2 * 4 * 8 * 4)
    assert len(meter.result()["updates"]) == 1
    assert meter.peak_bytes > 10 * 2**20


def fake(name: str, seconds: float, memory: float, log: float = 0.001) -> dict[str, Any]:
    phases = dict.fromkeys(PHASES, 0.0) | {"train": seconds - log, "log": log}
    clocks = dict.fromkeys(CLOCKS, phases)
    return {
        "contender": name, "trl": "1.0" if name.startswith("trl") else None, "size": "32k", "device": "cpu",
        "episodes": 64, "updates": [clocks], "first": clocks, "flops": phases, "built_bytes": 0, "parameters": 1e6,
        "matrix_peak": dict.fromkeys(CLOCKS, 1.0), "peak_bytes": memory * 2**30, "threads": 1,
    }  # fmt: skip


SHARED, SEPARATE, TRL = "ours-shared", "ours-separate", "trl-ppo"


@pytest.mark.parametrize(
    ("rounds", "lines"),
    [
        (
            [(SHARED, 1, 0.4), (TRL, 4, 1), (SHARED, 1, 0.4), (TRL, 3.5, 1), (SHARED, 1, 0.5), (TRL, 3.1, 1)],
            [
                "met          32k: ours-shared at least 3 x TRL's episodes/s: 3.5 (3.1 to 4)",
                "met          32k: ours-shared at most 0.5 x TRL's peak memory: 0.4 (0.4 to 0.5)",
            ],
        ),
        (
            [(SEPARATE, 3, 0.6, 0.5), (TRL, 4, 1), (SEPARATE, 1, 0.6, 0.5), (TRL, 4, 1)],
            ["unclear      32k: ours-separate at least", "falls short  32k: ours-separate at most", "falls", "met "],
        ),
        (
            [("ours-grpo", 1, 0.3), (SHARED, 1.5, 0.4), ("trl-grpo", 2, 1), ("trl-rloo", 9, 1)],
            ["falls short  32k: ours-grpo at least 3 x TRL's episodes/s: 2 (2 to 2)", "met          32k: ours-grpo at"
             " least 1.25 x ours-shared's episodes/s: 1.5 (1.5 to 1.5)"],
        ),
        ([(TRL, 4, 1)], []),
    ],
)  # fmt: skip
def test_ratios_are_taken_within_a_round_and_goals_are_met_unclear_or_missed(
    rounds: list[Any], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [fake(*one) for one in rounds]
    found = goals(frame(runs))
    assert [line.startswith(wanted) for line, wanted in zip(found, lines, strict=False)] == [True] * len(lines)
    show(runs, 0.5)
    said = capsys.readouterr().out
    assert all(name in said for name, *_ in rounds)
    assert "ablate --help: 0.50 s" in said


def options(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.delenv("TRL_PYTHON", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    return bench._options()


def test_what_needs_a_newer_trl_is_skipped_without_one_and_refused_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(CONTENDERS) - set(options(monkeypatch).contender) == set(NEWER_TRL)
    assert capsys.readouterr().err.startswith("skipped trl-grpo and trl-rloo: set TRL_PYTHON=")
    assert options(monkeypatch, "--trl-python", "python").contender == list(CONTENDERS)
    with pytest.raises(SystemExit):
        options(monkeypatch, "--contender", "ours-grpo", "trl-grpo")
    assert "pip install trl==1.16.0" in capsys.readouterr().err


@pytest.mark.slow
def test_all_contenders_run_and_do_the_same_generation(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, "-m", "benchmarks", "--size", "smoke", "--rounds", "1", "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ours-separate at least 2 x TRL" in done.stdout
    flops = {one["contender"]: one["flops"] for one in json.loads(out.read_text())["runs"]}
    grpo, rloo, shared, separate, peer, *newer = (flops[name] for name in CONTENDERS if name in flops)
    assert {one["generate"] for one in newer} <= {shared["generate"]}
    assert shared["generate"] == separate["generate"] == peer["generate"]
    assert 0 < grpo["generate"] == rloo["generate"] < shared["generate"], "a prompt is read once for its responses"
    assert 0 < grpo["train"] < shared["train"] < separate["train"] < peer["train"]
    assert grpo["train"] < rloo["train"], "whole responses take one more pass through the head"
