"""An arm that trains nothing and answers with the best of several samples: no series, no cost of training, a KL that is
a bound; in every part of the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from synthetic import WHOLE, build

from reports.figures.curves import arm_curves, kl, training
from reports.figures.frontier import frontier
from reports.figures.matched_kl import arithmetic
from reports.figures.matched_kl import matched as matched_figure
from reports.findings.bound import choosing_arms
from reports.findings.findings import Findings, analyse
from reports.findings.matched_kl import matched
from reports.records.load import StudyRecords
from reports.tables.runs import cost_table
from reports.text.methods import methods

TRAINED = {f"beta_{beta}": beta for beta in (0.05, 0.032, 0.025)}
SHAPE: dict[str, Any] = {**WHOLE, "steps": 64, "prompts": 30}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> StudyRecords:
    arms = {**TRAINED, "best_of_8": {"algorithm": "best_of_n"}}
    found = build(tmp_path_factory.mktemp("untrained"), arms=arms, **SHAPE).records
    for table, key in ((found.prompts, "kl"), (found.trials, "eval/kl_per_sequence")):
        table.loc[table["arm"] == "best_of_8", key] = math.log(8) - 7 / 8
    return found


@pytest.fixture(scope="module")
def findings(records: StudyRecords) -> Findings:
    return analyse(records)


def test_it_has_no_curve_and_stands_at_its_bound(records: StudyRecords, findings: Findings) -> None:
    assert [curve.arm for curve in arm_curves(records, "objective/kl")] == list(TRAINED)
    for figure in (kl, training):
        assert "best_of_8" not in set(figure(records, findings).data["arm"])
    assert choosing_arms(records) == {"best_of_8": 8}
    assert "best_of_8 (n = 8)" in frontier(records, findings).caption
    result = findings.arm("best_of_8").estimates["eval/kl_per_sequence"]
    assert (result.value, result.low, result.high) == pytest.approx((1.2044, 1.2044, 1.2044), abs=1e-4)


def test_it_is_compared_at_its_kl_and_costs_only_its_answers(records: StudyRecords, findings: Findings) -> None:
    assert [(row.arm, row.reason) for row in matched(records) if row.metric == "eval/gold"] == [("best_of_8", "")]
    assert arithmetic(records)["best_of_8"] == 0.0
    axes = matched_figure(records, findings).figure.axes
    assert any("1.20 nats, no training" in label.get_text() for one in axes for label in one.get_yticklabels())
    row = cost_table(records).frame.set_index("arm").loc["best_of_8"]
    assert (row["steps_mean"], row["cost/tflop_mean"], row["cost/evaluate_generated_tokens_mean"]) == (0, 0, 38400)
    assert "best_of_8 (n = 8)" in methods(records, findings)["Evaluation"]


def test_a_study_that_trains_nothing_at_all_can_be_shown(tmp_path: Path) -> None:
    arms: dict[str, Any] = {f"n_{n}": {"algorithm": "best_of_n", "evaluate.best_of": n} for n in (1, 2)}
    built = build(tmp_path, arms=arms, baseline="n_1", **SHAPE)
    records, found = built.records, built.findings
    assert (kl(records, found), training(records, found)) == (None, None)
    assert frontier(records, found) is not None
    assert arithmetic(records) == {}, "no multiple of nothing"
