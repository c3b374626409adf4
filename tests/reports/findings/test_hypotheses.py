from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import WHOLE, Built, build, with_study

from pipeline.run.layout import write_json
from reports.findings.findings import analyse
from reports.findings.hypotheses import Judgement, judge, overall
from reports.findings.pairs import possible
from reports.pages.report import build as build_page
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.two_level import Estimate
from studies.definition.hypotheses import Hypothesis

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
FEW: dict[str, Any] = {**WHOLE, "steps": 64, "extra": EXTRA}
Ask = Callable[..., Judgement]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("hypotheses")
    return build(folder, **WHOLE | {"diverged": (("beta_0", 2),)}, extra=EXTRA)


@pytest.fixture(scope="module")
def records(built: Built) -> StudyRecords:
    return built.records


@pytest.fixture(scope="module")
def ask(records: StudyRecords) -> Ask:
    def judged(**content: object) -> Judgement:
        one = Hypothesis.model_validate({"name": "n", "claim": "c", "metric": "eval/kl_per_token", **content})
        return judge(with_study(records, hypotheses=(one,)))[0]

    return judged


def test_an_order_holds_where_all_of_its_steps_do(records: StudyRecords, ask: Ask) -> None:
    falls, wrong, series = judge(records)
    assert [one.outcome for one in (falls, wrong, series)] == ["SUPPORTED", "REFUTED", "SUPPORTED"]
    assert [step.holds for step in falls.steps] == [True, True]
    assert falls.p == max(step.p for step in falls.steps) == falls.deciding.p
    assert wrong.p == pytest.approx(falls.steps[1].p)
    assert [one.p_holm for one in (falls, wrong, series)] == two_level.holm([falls.p, wrong.p, series.p])
    assert overall([falls, wrong, series]) == "REFUTED"
    assert overall([falls, series]) == "SUPPORTED"
    # One wrong step refutes an order, after correction for its steps.
    judged = ask(order=["beta_0.01", "beta_0.2", "beta_0.05"], expect="lower")
    assert ([step.holds for step in judged.steps], judged.outcome) == ([True, False], "REFUTED")
    assert judged.deciding is judged.steps[1]
    assert judged.p == judged.p_holm == pytest.approx(2 * judged.steps[1].p)


def test_contrasts_are_made_of_recorded_means_ends_of_series_and_costs(records: StudyRecords, ask: Ask) -> None:
    arms = ("beta_0.01", "beta_0.05", "beta_0.2")
    (step,) = ask(metric="eval/gold", contrast=dict(zip(arms, (1, -2, 1), strict=True)), expect="higher").steps
    means = [sum(records.recorded(arm, "eval/gold").values()) / 3 for arm in arms]
    assert step.estimate.value == pytest.approx(means[0] - 2 * means[1] + means[2])
    assert (step.estimate.seeds, step.estimate.prompts) == (3, 200)
    (step,) = ask(metric="objective/scores", contrast="beta_0.01 - beta_0.2", expect="higher").steps
    first, second = (
        [v[-(len(v) // 10) :].mean() for _, v in records.series(arm, "objective/scores").values()]
        for arm in ("beta_0.01", "beta_0.2")
    )
    assert step.estimate == two_level.over_seeds([a - b for a, b in zip(first, second, strict=True)])


def test_what_cannot_be_judged_yet(tmp_path: Path, ask: Ask) -> None:
    judged = ask(contrast="beta_0 - beta_0.05", expect="higher")
    assert (judged.steps[0].holds, judged.p_holm, judged.outcome) == (True, None, "UNDECIDED")
    assert "beta_0 seed 2 diverged" in judged.reason
    for number, (shape, reasons) in enumerate(
        [
            ({"missing": (("beta_0.2", 1),)}, {1: "1 of its 6 trials"}),
            ({"seeds": (0,)}, {0: "1 shared seed"}),
        ]
    ):
        found = judge(build(tmp_path / str(number), **FEW | shape).records)
        assert {one.outcome for one in found} == {"NOT TESTED"}
        assert all(words in found[index].reason for index, words in reasons.items())


def test_the_page_names_what_decided_with_its_badge(built: Built, records: StudyRecords, tmp_path: Path) -> None:
    few = replace(records, study=built.study.on_fresh_seeds().model_copy(update={"figures": ()}))
    build_page(few, analyse(few), tmp_path / "a")
    assert "kl_demo has no report here" in (tmp_path / "a" / "index.html").read_text()
    built.folder.report.mkdir(exist_ok=True)
    write_json(built.folder.claims_file, {"answer": "It does.", "verdict": "It is refuted.", "claims": ["One fell."]})
    build_page(few, analyse(few), tmp_path / "b")
    assert "It does. It is refuted. One fell." in (tmp_path / "b" / "index.html").read_text()
    claims = json.loads((tmp_path / "b" / "claims.json").read_text())
    assert [one["outcome"] for one in claims["hypotheses"]] == [one.outcome for one in judge(few)]


def test_a_contrast_of_rates_stays_within_what_rates_can_differ_by() -> None:
    wide = Estimate(-0.4, -2.7, 1.8, 2, 512, "hierarchical")
    assert (possible(wide, "eval/win_rate").low, possible(wide, "eval/win_rate").high) == (-1.0, 1.0)
    assert possible(wide, "eval/win_rate", (1, -1, -1, 1)).low == -2.0
    assert possible(wide, "eval/gold") == wide
