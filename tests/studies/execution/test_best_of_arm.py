"""A study with an arm that trains nothing, beside PPO, for real: run, judged, drawn, and run again."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.run.layout import Layout
from reports.pages.report import render_report
from studies.claims.verdicts import verdicts
from studies.definition.design import cells
from studies.definition.schema import load_study
from studies.execution import executors
from studies.execution.study import run_study

STUDY = """
question: Does PPO win more often than the best of four samples?
profile: smoke
baseline: ppo
seeds: [0, 1]
vary: [labels, reward, sft]
arms:
  ppo: {}
  ppo_twice: {evaluate.best_of: 2}
  best_of_4: {algorithm: best_of_n, evaluate.best_of: 4}
methods:
  ppo: [ppo, ppo_twice]
falsifiers:
  - {name: series, claim: c, metric: objective/kl, op: ">", threshold: 1000, before_step: 32}
  - {name: wins, claim: c, metric: eval/win_rate, op: "<", threshold: 0.01}
"""


@pytest.mark.slow
def test_a_study_of_ppo_and_best_of_n(tmp_path: Path) -> None:
    source = tmp_path / "beside.yaml"
    source.write_text(STUDY)
    study, layout = load_study(source), Layout.at(tmp_path / "out")

    def run() -> str:
        said = io.StringIO()
        run_study(study, layout, None, {}, executors.Inline, 1, Console(file=said, width=200))
        return said.getvalue()

    assert "best_of_4 seed 0: complete" in run()
    folder = layout.study(study.name, "smoke")
    found = {(one.arm, one.seed): one for one in folder.records()}
    for seed in (0, 1):
        ppo, twice, best = (found[arm, seed] for arm in study.arm_overrides())
        assert (ppo.steps, twice.steps, best.steps, best.status) == (32, 32, 0, "complete")
        assert ppo.stages["train"].key == twice.stages["train"].key
        assert best.cost["generated_tokens"] == 0.0 < best.cost["evaluate_generated_tokens"]
        assert best.summary["eval/kl_per_sequence"] == pytest.approx(0.6363, abs=1e-4)
        assert best.summary["eval/proxy"] > best.summary["eval/proxy_reference"] + 0.5
    assert found["best_of_4", 0].stages["train"].digest != found["best_of_4", 1].stages["train"].digest
    judged = {(one.name, one.arm): one.outcome for one in verdicts(study, folder, cells(study))}
    assert judged["series", "best_of_4"] == "NOT TESTED"
    assert {judged["series", "ppo"], judged["wins", "best_of_4"]} == {"SURVIVED"}
    page = render_report(folder, study).read_text("utf-8")
    assert "ppo_twice (n = 2) and best_of_4 (n = 4) answer with the best of n samples by the proxy" in page
    assert "complete" not in run(), "nothing runs again"
