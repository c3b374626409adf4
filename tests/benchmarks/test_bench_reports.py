from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic

from pipeline.run.layout import Layout
from studies.definition.schema import load_study

ABLATE = str(Path(__file__).parents[2] / "ablate.py")
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


def test_report_of_a_large_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 trials x 3,000 steps x 20 metrics, 512 prompts each."""
    source, layout = tmp_path / "large.yaml", Layout.at(tmp_path / "out")
    source.write_text(STUDY + "".join(f"  beta_{beta}: {{kl.beta: {beta}}}\n" for beta in BETAS))
    narrow, more = synthetic.curves, dict.fromkeys(MORE, 0.5)
    monkeypatch.setattr(synthetic, "curves", lambda *given: narrow(*given).bfill().ffill().assign(**more))
    study = load_study(source)
    synthetic.record_study(study, layout, STEPS, PROMPTS)
    synthetic.start(study, source, layout)
    process = subprocess.Popen([sys.executable, ABLATE, "report", str(source), "--out", str(tmp_path / "out")])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    seconds, gib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20
    print(f"\n{seconds:.1f} s of processor time, {gib:.2f} GiB at the peak")
    assert seconds < MAX_SECONDS
    assert gib < MAX_GIB
