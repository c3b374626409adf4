"""Findings against numbers recomputed from the files by other means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from helpers import republish, write_record
from scipy.stats import ttest_1samp

from reports.findings.findings import Findings, analyse
from reports.findings.pairs import SMALL_EFFECT, SMALLEST
from reports.records.load import StudyRecords, load_records
from reports.statistics import two_level
from reports.statistics.two_level import equivalence_p
from studies.claims.falsifiers import overall
from studies.claims.verdicts import verdicts

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built


def tables_of(demo: Built, arm: str, seeds: list[int]) -> list[pd.DataFrame]:
    found = []
    for seed in seeds:
        record = demo.folder.record(arm, seed)
        assert record is not None
        found.append(pd.read_parquet(demo.folder.root / record.stages["evaluate"].path / "prompts.parquet"))
    return found


def test_arm_means_equal_the_mean_of_the_recorded_summaries(demo: Built, findings: Findings) -> None:
    for result in findings.arms:
        summaries = [record.summary for seed in result.seeds if (record := demo.folder.record(result.arm, seed))]
        for key, estimate in result.estimates.items():
            assert estimate.value == pytest.approx(np.mean([summary[key] for summary in summaries])), key
            assert estimate.seeds == len(summaries)
            assert estimate.low is not None
            assert estimate.high is not None
            assert estimate.low <= estimate.value <= estimate.high


def test_effect_is_the_paired_difference_over_common_seeds(demo: Built, findings: Findings) -> None:
    effect = next(effect for effect in findings.effects_on("eval/gold") if effect.arm == "beta_0.01")
    arm, base = tables_of(demo, "beta_0.01", [0, 1]), tables_of(demo, "beta_0.05", [0, 1])
    paired = [float((a["policy_gold"] - b["policy_gold"]).mean()) for a, b in zip(arm, base, strict=True)]
    assert effect.estimate is not None
    assert effect.estimate.value == pytest.approx(np.mean(paired))
    assert list(effect.per_seed.values()) == pytest.approx(paired)
    assert (effect.estimate.seeds, effect.estimate.prompts) == (2, 200)


def test_findings_are_those_that_were_built_in(demo: Built, records: StudyRecords, findings: Findings) -> None:
    outcomes = {effect.arm: effect.outcome for effect in findings.effects_on("eval/win_rate")}
    assert outcomes["beta_0"] == "worse"
    assert outcomes["beta_0.01"] == "undecided"  # two seeds that disagree by half of the effect
    assert {effect.arm: effect.outcome for effect in findings.effects_on("eval/kl_per_sequence")} == {
        "beta_0": "worse", "beta_0.01": "worse", "beta_0.2": "better",
    }  # fmt: skip
    wanted = verdicts(demo.study, demo.folder, records.plan)
    assert list(findings.claims[0].verdicts) == wanted
    assert findings.claims[0].outcome == overall(wanted) == "FALSIFIED"


def test_holm_runs_over_the_arms_of_one_metric(findings: Findings) -> None:
    for metric in {effect.metric for effect in findings.effects}:
        effects = findings.effects_on(metric)
        assert [e.p_holm for e in effects] == pytest.approx(two_level.holm([e.p for e in effects if e.p is not None]))
        assert [e.p for e in effects] == [two_level.two_level_p(e.estimate) for e in effects if e.estimate]
        alone = [equivalence_p(e.estimate, e.smallest) for e in effects if e.estimate and e.smallest]
        assert [e.p_equivalence for e in effects] == pytest.approx(two_level.holm(alone))


def test_objective_that_exists_once_per_trial(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, prompts=8, steps=64, extra="objective: {metric: eval/distinct_2, direction: maximize}\n")
    effect = next(e for e in analyse(load_records(built.folder, built.study)).effects if e.arm == "beta_0.2")
    assert effect.metric == "eval/distinct_2"
    assert effect.estimate is not None
    assert effect.estimate.method == "student"
    assert effect.p == pytest.approx(ttest_1samp(list(effect.per_seed.values()), 0.0).pvalue)
    assert effect.smallest is None, "nobody stated one, and there is no spread over prompts to derive it from"


def test_the_smallest_difference_is_the_studys_else_a_default(
    build: Builder, tmp_path: Path, demo: Built, findings: Findings
) -> None:
    assert {effect.smallest for effect in findings.effects_on("eval/win_rate")} == {SMALLEST["eval/win_rate"]}
    spread = np.sqrt(np.mean([t["policy_gold"].var(ddof=1) for t in tables_of(demo, "beta_0.05", [0, 1, 2])]))
    last = findings.effects_on("eval/gold")[-1]  # beta_0.2, which shares all seeds with the baseline
    assert last.smallest == pytest.approx(SMALL_EFFECT * spread)
    stated = "objective: {metric: eval/win_rate, direction: maximize, smallest: 0.9}\n"
    whole = {"prompts": 60, "steps": 64, "diverged": (), "budget": (), "missing": ()}
    built = build(tmp_path, **whole, arms={"beta_0.05": 0.05, "beta_0.051": 0.051}, extra=stated)
    (effect,) = analyse(load_records(built.folder, built.study)).effects_on("eval/win_rate")
    assert (effect.smallest, effect.outcome) == (0.9, "equivalent")


def test_parts_of_a_composite_reward_are_estimated_prompt_by_prompt(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, prompts=8, steps=64)
    for record in built.folder.records():
        more = {"eval/reward/kind": 0.5} if record.summary else {}
        write_record(built.folder, record.model_copy(update={"summary": record.summary | more}))
        if "evaluate" in record.stages:
            path = built.folder.root / record.stages["evaluate"].path / "prompts.parquet"
            part = {"policy_reward/kind": np.linspace(0, 1, 8)}
            pd.read_parquet(path).assign(**part).to_parquet(path, index=False)
            republish(built.folder, path.parent)
    estimate = analyse(load_records(built.folder, built.study)).arm("beta_0.05").estimates["eval/reward/kind"]
    assert (estimate.value, estimate.prompts, estimate.method) == (pytest.approx(0.5), 8, "hierarchical")
