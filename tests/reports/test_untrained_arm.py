"""An arm that trains nothing and answers with the best of several samples: no series, no cost of training, a KL that is
a bound; in every part of the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reports.figures.curves import arm_curves, kl, training
from reports.figures.frontier import frontier
from reports.figures.matched_kl import arithmetic
from reports.figures.matched_kl import matched as matched_figure
from reports.findings.bound import choosing_arms
from reports.findings.findings import Findings, analyse
from reports.findings.matched_kl import matched
from reports.records.load import StudyRecords, load_records
from reports.tables.runs import cost_table
from reports.text.answer import recommendation
from reports.text.methods import methods

if TYPE_CHECKING:
    from tests.reports.conftest import Builder

ARMS: dict[str, Any] = {
    "beta_0.05": 0.05, "beta_0.032": 0.032, "beta_0.025": 0.025, "best_of_8": {"algorithm": "best_of_n"},
}  # fmt: skip
SHAPE: dict[str, Any] = {"steps": 64, "prompts": 30, "diverged": (), "budget": (), "missing": ()}


@pytest.fixture(scope="module")
def records(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> StudyRecords:
    built = build(tmp_path_factory.mktemp("untrained"), arms=ARMS, **SHAPE)
    found = load_records(built.folder, built.study)
    found.prompts.loc[found.prompts["arm"] == "best_of_8", "kl"] = math.log(8) - 7 / 8
    found.trials.loc[found.trials["arm"] == "best_of_8", "eval/kl_per_sequence"] = math.log(8) - 7 / 8
    return found


@pytest.fixture(scope="module")
def findings(records: StudyRecords) -> Findings:
    return analyse(records)


def test_it_has_no_curve_and_stands_at_its_bound(records: StudyRecords, findings: Findings) -> None:
    assert [curve.arm for curve in arm_curves(records, "objective/kl")] == ["beta_0.05", "beta_0.032", "beta_0.025"]
    for figure in (kl, training):
        drawn = figure(records, findings)
        assert drawn is not None
        assert "best_of_8" not in set(drawn.data["arm"])
    drawn = frontier(records, findings)
    assert drawn is not None
    assert choosing_arms(records) == {"best_of_8": 8}
    assert "best_of_8 (n = 8)" in drawn.caption
    result = findings.arm("best_of_8").estimates["eval/kl_per_sequence"]
    assert (result.value, result.low, result.high) == pytest.approx((1.2044, 1.2044, 1.2044), abs=1e-4)


def test_it_is_compared_at_its_kl_and_costs_only_its_answers(records: StudyRecords, findings: Findings) -> None:
    assert [(row.arm, row.reason) for row in matched(records) if row.metric == "eval/gold"] == [("best_of_8", "")]
    assert arithmetic(records)["best_of_8"] == 0.0
    drawn = matched_figure(records, findings)
    assert drawn is not None
    labels = [label.get_text() for axes in drawn.figure.axes for label in axes.get_yticklabels()]
    assert any("1.20 nats, no training" in label for label in labels)
    row = cost_table(records).frame.set_index("arm").loc["best_of_8"]
    assert (row["steps_mean"], row["cost/tflop_mean"], row["cost/evaluate_generated_tokens_mean"]) == (0, 0, 38400)
    text = methods(records, findings)
    assert "best_of_8 is the reference" in text["Training"]
    assert "best_of_8 (n = 8)" in text["Evaluation"]
    said = recommendation(records, findings)
    assert ("8 samples for each answer" in said) == said.startswith("Best setting: best_of_8")


def test_a_study_that_trains_nothing_at_all_can_be_shown(build: Builder, tmp_path: Path) -> None:
    arms: dict[str, Any] = {f"n_{n}": {"algorithm": "best_of_n", "evaluate.best_of": n} for n in (1, 2)}
    built = build(tmp_path, arms=arms, baseline="n_1", **SHAPE)
    records = load_records(built.folder, built.study)
    found = analyse(records)
    assert (kl(records, found), training(records, found)) == (None, None)
    assert frontier(records, found) is not None
    assert arithmetic(records) == {}, "no multiple of nothing"
    assert "gradient steps of" not in methods(records, found)["Training"]
