"""A search that really trains, killed without warning, resumed, confirmed and reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from light_study import wait_for
from rich.console import Console

from pipeline.run.layout import Layout
from studies.definition.schema import load_study
from studies.definition.search import load
from studies.execution.hand import Inline
from studies.execution.study import run_study

ROOT = Path(__file__).parents[3]
STUDY = """
question: Which beta wins most often within a limit on the drift?
hypothesis: A small one.
refuted_if: A large one wins more often.
profile: smoke
seeds: [0]
search:
  space:
    kl.beta: {low: 0.01, high: 1.0, log: true}
    optimiser.lr: {values: [1.0e-2, 1.0e-3]}
  trials: 6
  parallel: 2
  constraints: [{metric: eval/kl_per_token, max: 0.5}]
  prune: {metric: objective/kl_per_token, above: 1.0}
  confirm: {top: 1, seeds: [10]}
falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.01, before_step: 32,
     stop: true, arms: ["confirm-*"]}
"""


@pytest.mark.slow
def test_a_search_on_the_smoke_profile(tmp_path: Path) -> None:
    for name in ("killed", "whole"):
        (tmp_path / f"{name}.yaml").write_text(STUDY)
    layout = Layout(tmp_path / "out")
    command = [sys.executable, str(ROOT / "ablate.py"), "study", str(tmp_path / "killed.yaml"), "--jobs", "2"]
    command += ["--out", str(layout.root)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    folder = layout.study("killed", "smoke")
    wait_for(lambda: folder.search_file.exists() or driver.poll() is not None, 240)
    driver.kill()
    driver.communicate()
    assert (early := {record.arm: record.finished for record in folder.records()})

    again = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert {arm: folder.record(arm, 0).finished for arm in early} == early  # type: ignore[union-attr]
    assert "claim drift FALSIFIED" in again.stdout
    assert (folder.report / "index.html").exists()

    whole = load_study(tmp_path / "whole.yaml")  # its trials are in the store; the proposals are made anew
    run_study(whole, layout, None, {}, Inline, 1, Console(quiet=True))
    content = load(load_study(tmp_path / "killed.yaml"), folder)
    assert content is not None
    assert content == load(whole, layout.study("whole", "smoke"))
    assert {one["status"] for one in content["trials"]} == {"complete", "pruned"}
    for one in content["trials"]:
        assert one["feasible"] == (one["status"] == "complete" and one["values"]["eval/kl_per_token"] <= 0.5)
        assert (one["steps"] < 32) == (one["status"] == "pruned")
        assert "eval/win_rate" in one["values"], "a pruned trial is evaluated as well"
