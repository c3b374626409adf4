"""Findings against numbers recomputed from the files by other means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import write_record
from scipy.stats import ttest_1samp
from synthetic import WHOLE, Built, build

from reports.findings.findings import Findings
from reports.findings.pairs import SMALL_EFFECT, SMALLEST
from reports.statistics import two_level
from studies.claims.falsifiers import overall
from studies.claims.verdicts import verdicts

FEW: dict[str, Any] = {"prompts": 8, "steps": 64}


def gold_of(demo: Built, arm: str, *seeds: int) -> list[pd.Series]:
    paths = (demo.table(arm, seed, "evaluate", "prompts.parquet") for seed in seeds)
    return [pd.read_parquet(path)["policy_gold"] for path in paths]


def test_arm_means_equal_the_mean_of_the_recorded_summaries(demo: Built, findings: Findings) -> None:
    for result in findings.arms:
        summaries = [demo.folder.record(result.arm, seed).summary for seed in result.seeds]
        for key, estimate in result.estimates.items():
            assert estimate.value == pytest.approx(np.mean([summary[key] for summary in summaries])), key
            assert estimate.seeds == len(summaries)
            assert estimate.low <= estimate.value <= estimate.high


def test_effect_is_the_paired_difference_over_common_seeds(demo: Built, findings: Findings) -> None:
    effect = next(effect for effect in findings.effects_on("eval/gold") if effect.arm == "beta_0.01")
    arm, base = gold_of(demo, "beta_0.01", 0, 1), gold_of(demo, "beta_0.05", 0, 1)
    paired = [float((a - b).mean()) for a, b in zip(arm, base, strict=True)]
    assert effect.estimate.value == pytest.approx(np.mean(paired))
    assert list(effect.per_seed.values()) == pytest.approx(paired)
    assert (effect.estimate.seeds, effect.estimate.prompts) == (2, 200)


def test_findings_are_those_that_were_built_in(demo: Built, findings: Findings) -> None:
    outcomes = {effect.arm: effect.outcome for effect in findings.effects_on("eval/win_rate")}
    assert outcomes["beta_0"] == "worse"
    assert outcomes["beta_0.01"] == "undecided"  # two seeds that disagree by half of the effect
    drift = {effect.arm: effect.outcome for effect in findings.effects_on("eval/kl_per_sequence")}
    assert drift == {"beta_0": "worse", "beta_0.01": "worse", "beta_0.2": "better"}
    wanted = verdicts(demo.study, demo.folder, demo.records.plan)
    assert list(findings.claims[0].verdicts) == wanted
    assert findings.claims[0].outcome == overall(wanted) == "FALSIFIED"


def test_holm_runs_over_the_arms_of_one_metric(findings: Findings) -> None:
    for metric in {effect.metric for effect in findings.effects}:
        effects = findings.effects_on(metric)
        assert [e.p_holm for e in effects] == pytest.approx(two_level.holm([e.p for e in effects]))
        alone = [two_level.equivalence_p(e.estimate, e.smallest) for e in effects if e.smallest]
        assert [e.p_equivalence for e in effects] == pytest.approx(two_level.holm(alone))


def test_objective_that_exists_once_per_trial(tmp_path: Path) -> None:
    built = build(tmp_path, **FEW, extra="objective: {metric: eval/distinct_2, direction: maximize}\n")
    effect = next(e for e in built.findings.effects if e.arm == "beta_0.2")
    assert (effect.metric, effect.estimate.method) == ("eval/distinct_2", "student")
    assert effect.p == pytest.approx(ttest_1samp(list(effect.per_seed.values()), 0.0).pvalue)
    assert effect.smallest is None, "nobody stated one, and there is no spread over prompts to derive it from"


def test_the_smallest_difference_is_the_studys_else_a_default(tmp_path: Path, demo: Built, findings: Findings) -> None:
    assert {effect.smallest for effect in findings.effects_on("eval/win_rate")} == {SMALLEST["eval/win_rate"]}
    spread = np.sqrt(np.mean([gold.var(ddof=1) for gold in gold_of(demo, "beta_0.05", 0, 1, 2)]))
    last = findings.effects_on("eval/gold")[-1]  # beta_0.2, which shares all seeds with the baseline
    assert last.smallest == pytest.approx(SMALL_EFFECT * spread)
    stated = "objective: {metric: eval/win_rate, direction: maximize, smallest: 0.9}\n"
    arms = {"beta_0.05": 0.05, "beta_0.051": 0.051}
    (effect,) = build(tmp_path, **WHOLE, prompts=60, steps=64, arms=arms, extra=stated).findings.effects_on(
        "eval/win_rate"
    )
    assert (effect.smallest, effect.outcome) == (0.9, "equivalent")


def test_parts_of_a_composite_reward_are_estimated_prompt_by_prompt(tmp_path: Path) -> None:
    built = build(tmp_path, **FEW)
    for record in built.folder.records():
        more = {"eval/reward/kind": 0.5} if record.summary else {}
        write_record(built.folder, record.model_copy(update={"summary": record.summary | more}))
        if "evaluate" in record.stages:
            path = built.table(record.arm, record.seed, "evaluate", "prompts.parquet")
            built.rewrite(path, lambda table: table.assign(**{"policy_reward/kind": np.linspace(0, 1, 8)}))
    estimate = built.findings.arm("beta_0.05").estimates["eval/reward/kind"]
    assert (estimate.value, estimate.prompts, estimate.method) == (pytest.approx(0.5), 8, "hierarchical")
