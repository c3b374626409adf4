"""What each arm costs and wins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reports.figures.price import COSTS, price
from reports.findings.findings import Findings, analyse
from reports.records.load import StudyRecords, load_records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.conftest import Builder


@pytest.fixture(scope="module")
def found(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRecords, Findings]:
    folder: Path = tmp_path_factory.mktemp("price")
    built = build(folder, steps=64, prompts=30, diverged=(), budget=(), missing=())
    records = load_records(built.folder, built.study)
    return records, analyse(records)


def costing(records: StudyRecords, **tokens: float) -> StudyRecords:
    """The same records, whose arms sampled so many tokens; one TFLOP each unless not named."""
    trials = records.trials.copy()
    for key in COSTS:
        trials[key] = trials["arm"].map(lambda arm: tokens.get(arm, 1.0))
    return replace(records, trials=trials)


def test_every_arm_stands_at_its_cost(found: tuple[StudyRecords, Findings]) -> None:
    records, findings = found
    drawn = price(costing(records, **{"beta_0.05": 4.0}), findings)
    assert drawn is not None
    means = drawn.data[drawn.data["seed"].isna()].set_index("arm")
    assert means.loc["beta_0.05", "cost/tflop"] == 4.0
    assert means.loc["beta_0.2", "cost/generated_tokens"] == 1.0
    assert means.loc["beta_0.2", "value"] == findings.arm("beta_0.2").estimates["eval/win_rate"].value
    assert int(drawn.data["seed"].notna().sum()) == sum(len(result.seeds) for result in findings.arms)
    assert [axes.get_xscale() for axes in drawn.figure.axes] == ["log", "log"]


def test_equal_costs_are_no_picture(found: tuple[StudyRecords, Findings]) -> None:
    records, findings = found
    assert price(costing(records), findings) is None
    assert price(costing(records, **{"beta_0.05": 1.24}), findings) is None
    assert price(costing(records, **{"beta_0.05": 1.26}), findings) is not None


def test_an_arm_without_a_cost_is_named(found: tuple[StudyRecords, Findings]) -> None:
    records, findings = found
    drawn = price(costing(records, **{"beta_0.05": 4.0, "beta_0.2": 0.0}), findings)
    assert drawn is not None
    assert "Without a point, since no cost of training is known: beta_0.2." in drawn.caption
    assert "beta_0.2" not in set(drawn.data["arm"])
