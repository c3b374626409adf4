"""Waiting times: a rerun with nothing to train, and a report, of a study with the shape of `kl_ablation`; and the
report of a large study, which must not outgrow a laptop.

Numbers are made up. The goals of the first are those of an idle machine with two cores, and are shown, not asserted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import synthetic

from pipeline.run.layout import Layout
from studies.definition.schema import load_study

ABLATE = str(Path(__file__).parents[2] / "ablate.py")
ROUNDS = 5
ARMS, SEEDS, STEPS, PROMPTS = 30, 10, 3_000, 512
MORE = ("policy/pg_loss", "policy/ratio", "policy/grad_norm", "policy/lr_factor", "value/vf_clipfrac",
        "objective/entropy")  # fmt: skip
"""Metrics that make 20 with those of the made-up trials."""
MAX_SECONDS, MAX_GIB = 30.0, 2.0
"""Limits of the large study; processor time, which other work on the machine lengthens less than the wall time."""


def measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command of `ablate` to its good end: seconds of the wall clock, of all threads, and GiB at the peak."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, ABLATE, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def test_rerun_and_report(tmp_path: Path) -> None:
    study, layout = load_study("kl_ablation"), Layout.at(tmp_path)
    synthetic.record_study(study, layout, steps=2_048, prompts=512)
    rerun, report = ([command, study.name, "--out", str(tmp_path)] for command in ("study", "report"))

    def line(name: str, command: list[str], goal: float | None, rounds: int = ROUNDS) -> None:
        costs = [measured(command) for _ in range(rounds)]
        walls = [wall for wall, _, _ in costs]
        verdict = f"; goal {goal:g} s: {'met' if median(walls) < goal else 'missed'}" if goal else ""
        spread = f"{median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f}, n = {rounds})"
        print(f"  {name}: {spread}, {median(cpu for _, cpu, _ in costs):.2f} CPU s{verdict}")

    print("\nmedian (least to greatest) of the wall clock, and median of processor time:")
    line("first rerun: tells Optuna and MLflow, draws the report", rerun, None, rounds=1)
    line("rerun with nothing to train", rerun, 8.0)
    line("report", report, 6.0)
    line("--help", ["--help"], None)


def test_report_of_a_large_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 trials x 3,000 steps x 20 metrics, 512 prompts each."""
    betas = [f"{one:.3f}" for one in 0.002 * np.arange(1, ARMS + 1)]
    arms = "\n".join(f"  beta_{beta}: {{kl.beta: {beta}}}" for beta in betas)
    source, layout = tmp_path / "large.yaml", Layout.at(tmp_path / "out")
    source.write_text(
        f"question: How far?\nbaseline: beta_{betas[0]}\nseeds: {list(range(SEEDS))}\narms:\n{arms}\nfalsifiers:\n"
        "  - {name: drift, claim: it stays near, metric: objective/kl_per_token, op: '>', threshold: 0.5,"
        " before_step: 2000}\n"
    )
    narrow = synthetic.curves
    monkeypatch.setattr(
        synthetic, "curves", lambda *given: narrow(*given).bfill().ffill().assign(**dict.fromkeys(MORE, 0.5))
    )
    study = load_study(source)
    synthetic.record_study(study, layout, STEPS, PROMPTS)
    synthetic.start(study, source, layout)
    wall, cpu, gib = measured(["report", str(source), "--out", str(tmp_path / "out")])
    print(
        f"\nreport of {ARMS * SEEDS} trials x {STEPS:,} steps x 20 metrics, {PROMPTS} prompts each: {wall:.1f} s wall"
    )
    print(f"  clock, {cpu:.1f} CPU s (at most {MAX_SECONDS:g}), peak {gib:.2f} GiB (at most {MAX_GIB:g})")
    assert cpu < MAX_SECONDS
    assert gib < MAX_GIB
