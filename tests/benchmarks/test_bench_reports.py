"""Waiting times: a rerun with nothing to train, and a report, of a study with the shape of `kl_ablation`; and the
report of a large study, which must not outgrow a laptop. Numbers are made up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic

from pipeline.run.layout import Layout
from studies.definition.schema import load_study

ABLATE = str(Path(__file__).parents[2] / "ablate.py")
ROUNDS = 5
SEEDS, STEPS, PROMPTS = 10, 3_000, 512
BETAS = [f"{0.002 * n:.3f}" for n in range(1, 31)]
STUDY = f"""\
question: How far?
baseline: beta_{BETAS[0]}
seeds: {list(range(SEEDS))}
falsifiers:
  - {{name: drift, claim: it stays, metric: objective/kl_per_token, op: '>', threshold: 0.5, before_step: 2000}}
arms:
"""
MORE = ("policy/pg_loss", "policy/ratio", "policy/grad_norm", "policy/lr_factor", "value/vf_clipfrac",
        "objective/entropy")  # fmt: skip
"""Metrics that make 20 with those of the made-up trials."""
MAX_SECONDS, MAX_GIB = 30.0, 2.0
"""Limits of the large study; processor time, which other work on the machine lengthens less than the wall time."""


def measured(*command: str) -> dict[str, float]:
    """Run a command of `ablate` to its good end: seconds of the wall clock, of all threads, and GiB at the peak."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, ABLATE, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    wall = time.perf_counter() - start
    return {"wall s": wall, "CPU s": usage.ru_utime + usage.ru_stime, "peak GiB": usage.ru_maxrss / 2**20}


def test_rerun_and_report(tmp_path: Path) -> None:
    """The goals on an idle machine with two cores, not asserted: 8 s for a rerun, 6 s for a report."""
    study, layout = load_study("kl_ablation"), Layout.at(tmp_path)
    synthetic.record_study(study, layout, steps=2_048, prompts=512)
    rows: list[Any] = []
    measured("study", study.name, "--out", str(tmp_path))  # the first one tells Optuna and MLflow
    for command in ("study", "report"):
        rows += [measured(command, study.name, "--out", str(tmp_path)) | {"": command} for _ in range(ROUNDS)]
    rows += [measured("--help") | {"": "--help"} for _ in range(ROUNDS)]
    print("\n", pd.DataFrame(rows).groupby("").agg(["median", "min", "max"]).round(2).to_string())


def test_report_of_a_large_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 trials x 3,000 steps x 20 metrics, 512 prompts each."""
    source, layout = tmp_path / "large.yaml", Layout.at(tmp_path / "out")
    source.write_text(STUDY + "".join(f"  beta_{beta}: {{kl.beta: {beta}}}\n" for beta in BETAS))
    narrow, more = synthetic.curves, dict.fromkeys(MORE, 0.5)
    monkeypatch.setattr(synthetic, "curves", lambda *given: narrow(*given).bfill().ffill().assign(**more))
    study = load_study(source)
    synthetic.record_study(study, layout, STEPS, PROMPTS)
    synthetic.start(study, source, layout)
    cost = measured("report", str(source), "--out", str(tmp_path / "out"))
    print("\n", {name: round(value, 2) for name, value in cost.items()})
    assert cost["CPU s"] < MAX_SECONDS
    assert cost["peak GiB"] < MAX_GIB
