from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.stats import ttest_1samp
from synthetic import WHOLE, Built, build

from pipeline.config.base import replaced
from reports.findings import bound
from reports.findings.bound import LEAST_EFFECTIVE, best_win_rate, reference_scores, tilted
from reports.findings.findings import Findings
from reports.findings.pairs import SMALL_EFFECT, SMALLEST
from reports.findings.recommendation import prediction_bound
from reports.findings.trajectories import alarms, gold_peaks, healths, paths
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.tables.drift import peaks_table
from reports.tables.results import all_tables
from reports.tables.runs import health_table
from reports.text.answer import recommendation
from studies.claims.falsifiers import overall
from studies.claims.symptoms import by_arm, health_of
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
        built.folder.write(record.model_copy(update={"summary": record.summary | more}))
        if "evaluate" in record.stages:
            path = built.table(record.arm, record.seed, "evaluate", "prompts.parquet")
            built.rewrite(path, lambda table: table.assign(**{"policy_reward/kind": np.linspace(0, 1, 8)}))
    estimate = built.findings.arm("beta_0.05").estimates["eval/reward/kind"]
    assert (estimate.value, estimate.prompts, estimate.method) == (pytest.approx(0.5), 8, "hierarchical")


RIVALS = {"beta_0.01": 0.01, "beta_0.05": 0.05, "beta_1": 1.0}


def found_in(root: Path, extra: str = "", **changes: Any) -> tuple[Any, str]:
    gold = "objective: {metric: eval/gold, direction: maximize}\n"
    built = build(root, extra=gold + extra, arms=RIVALS, **{**WHOLE, **changes})
    return built.findings, recommendation(built.records, built.findings)


def test_the_best_arm_within_the_constraints_is_named_first(tmp_path: Path) -> None:
    findings, text = found_in(tmp_path / "a")
    found = findings.recommendation
    values = {arm.arm: arm.estimates["eval/gold"].value for arm in findings.arms}
    assert found.arm == max(values, key=values.__getitem__)
    per_seed = findings.arm(found.arm).per_seed["eval/gold"]
    assert found.worst_seed[1] == min(per_seed.values())
    assert found.bad_seed == prediction_bound(list(per_seed.values()), lower=True)
    assert text.startswith(f"Best setting: {found.arm}")
    drift = {arm.arm: arm.estimates["eval/kl_per_token"].value for arm in findings.arms}
    limit = (drift["beta_0.05"] + drift["beta_1"]) / 2
    bounded, text = found_in(tmp_path / "b", f"constraints: [{{metric: eval/kl_per_token, max: {limit:.6f}}}]\n")
    assert bounded.recommendation.arm == "beta_1"
    assert set(bounded.recommendation.excluded) == {"beta_0.01", "beta_0.05"}
    assert "beta_0.01 and beta_0.05" in text
    none, text = found_in(tmp_path / "c", "constraints: [{metric: eval/kl_per_token, max: 0}]\n", steps=64)
    assert (none.recommendation, text) == (None, "")


@pytest.mark.parametrize(("p", "beaten"), [(0.016, True), (0.018, False)])
def test_the_choice_of_the_best_counts_all_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p: float, beaten: bool
) -> None:
    """Three arms are three pairs, though the best is compared with two."""
    monkeypatch.setattr(two_level, "two_level_p", lambda effect: p)
    found = found_in(tmp_path, seeds=(0, 1))[0].recommendation
    assert (found.rivals == (), found.named) == (beaten, beaten)
    assert found.bad_seed is None, "two seeds do not tell what to expect of a third"


def test_one_new_value_in_ten_lies_beyond_the_bound() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 6))
    below = [row[5] < prediction_bound(list(row[:5]), lower=True) for row in draws]
    assert np.mean(below) == pytest.approx(0.1, abs=0.015)
    values = [0.81, 0.86, 0.9, 0.79]
    interval = stats.t.interval(0.8, 3, np.mean(values), np.std(values, ddof=1) * np.sqrt(1.25))
    assert [prediction_bound(values, lower=lower) for lower in (True, False)] == pytest.approx(interval)


KL = "objective/kl_per_token"


def test_paths_take_the_exact_kl_where_it_was_recorded(records: StudyRecords) -> None:
    exact = records.curves["objective/kl"] / records.curves["objective/length"]
    doubled = records.curves.assign(**{"objective/kl_exact_per_token": 2 * exact})
    before, after = paths(records), paths(replace(records, curves=doubled))
    np.testing.assert_allclose(after["beta_0.05", 0].kl, 2 * before["beta_0.05", 0].kl)
    assert len(before) == 11
    for dropped in (["objective/kl"], ["objective/gold", "objective/scores"]):
        other = replace(records, curves=records.curves.drop(columns=dropped))
        assert (paths(other), alarms(other), gold_peaks(other)) == ({}, (), ())


def test_drift_of_the_demo_is_what_was_built_in(records: StudyRecords, findings: Findings) -> None:
    """The builder's gold is 0.4 + d (1.1 - 0.26 d) of d = √KL: it peaks at d = 2.1, at 1.56 judge points, and only beta
    0 goes beyond."""
    raised = {one.arm: one for one in findings.alarms}
    assert len(raised["beta_0"].alarms) == raised["beta_0"].trials == 3
    assert raised["beta_0"].kl.value == pytest.approx((1.1 / 0.52) ** 2, rel=0.6)
    assert (raised["beta_0.05"].alarms, raised["beta_0.05"].kl) == ({}, None)
    found = {one.arm: one for one in findings.peaks}
    hacked, held = found["beta_0"], found["beta_0.2"]
    assert hacked.root_kl.value == pytest.approx(2.1, abs=0.4)
    assert 1.25 < hacked.gold.value < 1.6
    assert hacked.fall.value > 2
    assert abs(held.fall.value) < 0.1
    assert held.gold.method == "student"
    assert hacked.step.value == pytest.approx(np.mean([one.step for one in hacked.trials.values()]))
    assert all(bound.low >= 0 for one in findings.peaks for bound in (one.step, one.root_kl) if bound.low is not None)
    table = peaks_table(findings.peaks).frame.set_index("arm")
    assert table.loc["beta_0", ["gold", "gold_low"]].tolist() == [hacked.gold.value, hacked.gold.low]


def test_the_page_judges_health_as_the_tag_does(records: StudyRecords, findings: Findings) -> None:
    recorded = {cell: health_of(records.folder, record) for cell, record in sorted(records.records.items())}
    assert {one.arm: one for one in findings.health} == {one.arm: one for one in by_arm(recorded)}
    counts = {one.arm: (len(one.unhealthy), one.judged) for one in findings.health}
    assert counts == {"beta_0": (3, 3), "beta_0.01": (0, 2), "beta_0.05": (0, 3), "beta_0.2": (0, 3)}
    rows = [[cell.text for cell in row] for row in health_table(findings.health).rows]
    assert [row[1] for row in rows] == ["3 of 3", "0 of 2", "0 of 3", "0 of 3"]
    assert rows[0][2] == f"{KL} above 0.5"
    shown = next(table for table in all_tables(records, findings) if table.name == "health")
    assert "Neither is a fault" not in shown.note
    single = {"train.num_epochs": 1, "train.num_mini_batches": 1}
    plan = tuple(
        replace(cell, config=replaced(cell.config, single if cell.arm == "beta_0" else {"train.num_epochs": 1}))
        for cell in records.plan
    )
    changed = next(table for table in all_tables(replace(records, plan=plan), findings) if table.name == "health")
    assert "With one gradient step per rollout (beta_0) the policy" in changed.note


def test_failed_trials_are_left_out_and_diverged_ones_counted(records: StudyRecords) -> None:
    def with_status(arm: str, status: str) -> StudyRecords:
        own = records.records[arm, 0].model_copy(update={"status": status})
        mine = (records.trials["arm"] == arm) & (records.trials["seed"] == 0)
        trials = records.trials.assign(status=records.trials["status"].mask(mine, status))
        return replace(records, records={**records.records, (arm, 0): own}, trials=trials)

    failed = with_status("beta_0", "failed")
    assert ("beta_0", 0) not in paths(failed)
    assert (healths(failed)[0].judged, list(healths(failed)[0].unhealthy)) == (2, [1, 2])
    ended = {one.arm: one for one in healths(with_status("beta_0.05", "diverged"))}["beta_0.05"]
    assert (ended.ill, ended.judged, ended.diverged) == (1, 3, (0,))


def test_a_normal_reward_can_rise_by_the_root_of_twice_the_kl() -> None:
    path = tilted(np.random.default_rng(0).normal(3.0, 2.0, 100_000))
    inner = (path.kl > 0.01) & (path.effective > 1000)
    np.testing.assert_allclose(path.value[inner] - 3.0, 2.0 * np.sqrt(2 * path.kl[inner]), rtol=0.03)
    assert path.effective.min() >= LEAST_EFFECTIVE


def test_interval_counts_samples_of_one_prompt_as_one_piece_of_evidence() -> None:
    """Four samples of each of 500 prompts, half of whose variance lies between prompts; at 0.5 nats a standard normal
    score rises by 1."""
    rng, prompts = np.random.default_rng(5), np.repeat(np.arange(500), 4)
    inside: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(200):
        gold = rng.normal(size=500)[prompts] * 0.5**0.5 + rng.normal(size=2000) * 0.5**0.5
        for grouped in inside:
            path = tilted(gold, prompts if grouped else None)
            low, high = (float(np.interp(0.5, path.kl, side)) for side in (path.low, path.high))
            inside[grouped].append(low <= 1.0 <= high)
    assert 0.9 <= np.mean(inside[True]) <= 0.99
    assert np.mean(inside[False]) < 0.88


def test_two_outcomes_have_the_exact_answer() -> None:
    """A coin with the probability p of heads has log 2 + p log p + (1 - p) log(1 - p) nats to a fair one."""
    path = tilted(np.array([0.0, 1.0] * 500))
    p = path.value[path.value < 1 - 1e-9]
    np.testing.assert_allclose(path.kl[: len(p)], np.log(2) + p * np.log(p) + (1 - p) * np.log1p(-p), atol=1e-9)
    assert path.kl[-1] == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="differ"):
        tilted(np.ones(10))


def test_win_rate_of_no_policy_passes_the_bound() -> None:
    kl, rate = best_win_rate(20.0)
    assert (kl[0], rate[0]) == (0.0, 0.5)
    assert kl[-1] > 20.0
    assert (np.diff(kl) > 0).all()
    for n in (2, 4, 16, 256, 10_000):
        most = float(np.interp(np.log(n) - (n - 1) / n, kl, rate))  # best of n
        assert most - 0.01 < n / (n + 1) <= most + 1e-6
    uniform = tilted(np.random.default_rng(3).random(200_000))
    shown = uniform.effective > 2000
    np.testing.assert_allclose(uniform.value[shown], np.interp(uniform.kl[shown], kl, rate), atol=0.004)


def test_scores_are_read_from_the_store_once_each(records: StudyRecords) -> None:
    scores, prompts = reference_scores(records)
    assert (len(scores), len(set(prompts))) == (4000, 1000)  # three references of equal answers
    assert scores.mean() == pytest.approx(0.4, abs=0.05)


def test_scores_of_several_references_are_pooled(records: StudyRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {
        "a": pd.DataFrame({"prompt": ["p", "q"], "gold": [0.0, 2.0]}),
        "b": pd.DataFrame({"prompt": ["p", "r"], "gold": [10.0, 14.0]}),
    }
    monkeypatch.setattr(bound, "_draws", lambda _, where: tables.get(where))
    stages = tuple({"stage": "reference", "path": where} for where in ("a", "b", "a", "lost"))
    found = reference_scores(replace(records, upstream=stages))
    assert found[0].tolist() == [0.0, 2.0, 10.0, 14.0]
    assert found[1].tolist() == [0, 1, 0, 2], "answers to one prompt are one piece of evidence"
    (arm, seed), one = next(iter(records.records.items()))
    reference = one.stages["reference"].model_copy(update={"path": "b"})
    elsewhere = one.model_copy(update={"stages": {"reference": reference}})
    other = replace(records, upstream=stages, records={(arm, seed): elsewhere})
    vars(other)["other_tasks"] = (arm,)
    assert reference_scores(other)[0].tolist() == [0.0, 2.0], "arms on another task have references of their own"
