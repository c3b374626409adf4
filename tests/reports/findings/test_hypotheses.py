"""Verdicts on hypotheses against the recorded tables, and how the page tells them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.run.layout import write_json
from reports.findings.findings import analyse
from reports.findings.hypotheses import Judgement, judge, overall
from reports.findings.pairs import possible
from reports.pages.report import build as build_page
from reports.records.load import StudyRecords, load_records
from reports.statistics import two_level
from reports.statistics.two_level import Estimate
from reports.text.hypotheses import verdict_sentence
from studies.definition.hypotheses import Hypothesis

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

EXTRA = """
hypotheses:
  - name: falls
    claim: KL falls with beta
    metric: eval/kl_per_token
    order: [beta_0.01, beta_0.05, beta_0.2]
    expect: lower
  - name: wrong
    claim: a larger beta drifts more
    metric: eval/kl_per_token
    contrast: beta_0.2 - beta_0.05
    expect: higher
  - {name: series, claim: trained to more, metric: objective/scores, contrast: beta_0.01 - beta_0.2, expect: higher}
confirm: {seeds: [7, 8]}
"""
Ask = Callable[..., Judgement]


@pytest.fixture(scope="module")
def built(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("hypotheses")
    return build(folder, diverged=(("beta_0", 2),), budget=(), missing=(), extra=EXTRA)


@pytest.fixture(scope="module")
def records(built: Built) -> StudyRecords:
    return load_records(built.folder, built.study)


@pytest.fixture(scope="module")
def ask(records: StudyRecords) -> Ask:
    def judged(**content: object) -> Judgement:
        hypothesis = Hypothesis.model_validate({"name": "n", "claim": "c", "metric": "eval/gold", **content})
        return judge(replace(records, study=records.study.model_copy(update={"hypotheses": (hypothesis,)})))[0]

    return judged


def test_an_order_holds_where_all_of_its_steps_do(records: StudyRecords) -> None:
    falls, wrong, series = judge(records)
    assert [one.outcome for one in (falls, wrong, series)] == ["SUPPORTED", "REFUTED", "SUPPORTED"]
    assert [step.holds for step in falls.steps] == [True, True]
    assert falls.p == max(step.p for step in falls.steps if step.p is not None) == falls.deciding.p
    assert wrong.p == pytest.approx(falls.steps[1].p)
    assert [one.p_holm for one in (falls, wrong, series)] == two_level.holm([falls.p, wrong.p, series.p])
    assert overall([falls, wrong, series]) == "REFUTED"
    assert overall([falls, series]) == "SUPPORTED"


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_a_hypothesis_can_speak_of_the_memory_that_training_keeps(records: StudyRecords, spread: float) -> None:
    """As a rule it is the same on every seed, so the interval has no width."""
    costs = {"beta_0.01": 1.0, "beta_0.05": 5.0, "beta_0.2": 1.5}
    trials = records.trials.assign(
        **{"cost/state_gib": records.trials["arm"].map(costs) + spread * records.trials["seed"]}
    )
    weights = {"beta_0.2": 1.0, "beta_0.05": -0.5, "beta_0.01": -0.5}
    outcomes = []
    for expect in ("lower", "higher"):
        hypothesis = Hypothesis.model_validate(
            {"name": "n", "claim": "c", "metric": "cost/state_gib", "contrast": weights, "expect": expect}
        )
        study = records.study.model_copy(update={"hypotheses": (hypothesis,)})
        (found,) = judge(replace(records, trials=trials, study=study))
        assert found.steps[0].estimate is not None
        assert found.steps[0].estimate.value == pytest.approx(-1.5)
        outcomes.append(found.outcome)
    assert outcomes == ["SUPPORTED", "REFUTED"]


def test_one_wrong_step_refutes_an_order_after_correction_for_its_steps(ask: Ask) -> None:
    judged = ask(metric="eval/kl_per_token", order=["beta_0.01", "beta_0.2", "beta_0.05"], expect="lower")
    assert [step.holds for step in judged.steps] == [True, False]
    assert judged.deciding is judged.steps[1]
    assert judged.steps[1].p is not None
    assert judged.p == judged.p_holm == pytest.approx(2 * judged.steps[1].p)
    assert judged.outcome == "REFUTED"


def test_more_hypotheses_need_smaller_p_values(records: StudyRecords) -> None:
    """The same part is supported alone and undecided beside others, and the reason says so."""
    hypothesis = next(one for one in records.study.hypotheses if one.name == "series")
    (alone,) = judge(replace(records, study=records.study.model_copy(update={"hypotheses": (hypothesis,)})))
    assert alone.outcome == "SUPPORTED"
    assert alone.p is not None
    count = int(0.05 / alone.p) + 2
    many = tuple(hypothesis.model_copy(update={"name": f"n{index}"}) for index in range(count))
    found = judge(replace(records, study=records.study.model_copy(update={"hypotheses": many})))
    assert {(one.outcome, one.p) for one in found} == {("UNDECIDED", alone.p)}
    assert all(f"the corrected p-value is {one.p_holm:.3f}" in one.reason for one in found if one.p_holm)


def test_an_interaction_is_made_of_recorded_means(records: StudyRecords, ask: Ask) -> None:
    (step,) = ask(contrast={"beta_0.01": 1, "beta_0.05": -2, "beta_0.2": 1}, expect="higher").steps
    means = {
        arm: sum(records.recorded(arm, "eval/gold").values()) / 3 for arm in ("beta_0.01", "beta_0.05", "beta_0.2")
    }
    assert step.estimate is not None
    assert step.estimate.value == pytest.approx(means["beta_0.01"] - 2 * means["beta_0.05"] + means["beta_0.2"])
    assert (step.estimate.seeds, step.estimate.prompts) == (3, 200)


def test_of_a_series_the_last_tenth_counts(records: StudyRecords, ask: Ask) -> None:
    (step,) = ask(metric="objective/scores", contrast="beta_0.01 - beta_0.2", expect="higher").steps
    last = {
        arm: [v[-(len(v) // 10) :].mean() for _, v in records.series(arm, "objective/scores").values()]
        for arm in records.arms
    }
    assert step.estimate == two_level.over_seeds(
        [a - b for a, b in zip(last["beta_0.01"], last["beta_0.2"], strict=True)]
    )


def test_a_diverged_seed_leaves_a_hypothesis_undecided(ask: Ask) -> None:
    judged = ask(metric="eval/kl_per_token", contrast="beta_0 - beta_0.05", expect="higher")
    assert judged.steps[0].holds
    assert judged.p_holm is None
    assert (judged.outcome, judged.reason.split(";")[0]) == ("UNDECIDED", "beta_0 seed 2 diverged")


def test_it_is_not_tested_before_its_trials_have_run(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, diverged=(), budget=(), missing=(("beta_0.2", 1),), extra=EXTRA)
    falls, wrong, series = judge(load_records(built.folder, built.study))
    assert {one.outcome for one in (falls, wrong, series)} == {"NOT TESTED"}
    assert wrong.reason == "1 of its 6 trials has still to run"
    assert wrong.steps[0].estimate is not None


def test_one_seed_tests_nothing(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), diverged=(), budget=(), missing=(), extra=EXTRA)
    judged = judge(load_records(built.folder, built.study))
    assert {one.outcome for one in judged} == {"NOT TESTED"}
    assert judged[0].reason == "1 shared seed with eval/kl_per_token; 2 are needed"


def test_the_page_names_what_decided_with_its_badge(built: Built, records: StudyRecords, tmp_path: Path) -> None:
    judged, study = judge(records), records.study
    first = {name: replace(badge, state="registered") for name, badge in records.standing.hypotheses.items()}
    sentence = verdict_sentence(study, judged, first)
    for words in ("is refuted", "wrong is refuted", "falls and series are supported"):
        assert words in sentence
    held = [one for one in judged if one.outcome == "SUPPORTED"]
    assert "2 parts" in verdict_sentence(study, held, first), (
        "not the whole: a claim about single trials may have fallen"
    )
    assert "only part" in verdict_sentence(study, held[:1], first)
    late = verdict_sentence(study, judged, {**first, "falls": replace(first["falls"], state="amended")})
    assert late.removeprefix(sentence).endswith(": falls.")
    few = replace(records, study=study.model_copy(update={"figures": ()}))
    build_page(few, analyse(few), tmp_path)
    page, claims = (tmp_path / "index.html").read_text(), json.loads((tmp_path / "claims.json").read_text())
    assert page.index("wrong is refuted") < page.index('id="claims"') < page.index('id="results"')
    assert page.count("exploratory (run before registration existed)") >= 5
    assert [one["outcome"] for one in claims["hypotheses"]] == ["SUPPORTED", "REFUTED", "SUPPORTED"]
    assert "p < 0.001" in claims["hypotheses"][0]["found"]


def test_the_page_of_a_confirmation_shows_what_was_found(built: Built, records: StudyRecords, tmp_path: Path) -> None:
    fresh = replace(records, study=built.study.on_fresh_seeds().model_copy(update={"figures": ()}))
    build_page(fresh, analyse(fresh), tmp_path / "a")
    assert "kl_demo has no report here" in (tmp_path / "a" / "index.html").read_text()
    found = {"answer": "It does.", "verdict": "It is refuted.", "claims": ["One fell."]}
    built.folder.report.mkdir(exist_ok=True)
    write_json(built.folder.claims_file, found)
    build_page(fresh, analyse(fresh), tmp_path / "b")
    assert "It does. It is refuted. One fell." in (tmp_path / "b" / "index.html").read_text()


def test_a_contrast_of_rates_stays_within_what_rates_can_differ_by() -> None:
    wide = Estimate(-0.4, -2.7, 1.8, 2, 512, "hierarchical")
    assert (possible(wide, "eval/win_rate").low, possible(wide, "eval/win_rate").high) == (-1.0, 1.0)
    assert possible(wide, "eval/win_rate", (1, -1, -1, 1)).low == -2.0
    assert possible(wide, "eval/gold") == wide
    assert possible(wide, "eval/kl_per_token") == wide
