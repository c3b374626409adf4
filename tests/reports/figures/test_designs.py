"""Figures that only some designs have: crossed knobs, and searches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.figures.registry import figure
from reports.figures.style import house_style
from reports.findings.crossings import crossings
from reports.findings.findings import Findings, analyse
from reports.pages.report import render_report
from reports.records.load import StudyRecords, load_records
from reports.records.searches import search_of
from studies.definition.space import Objective

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

LAM, BETA = "algorithm.gae_lambda", "kl.beta"
CROSSED = {
    "base": {BETA: 0.05, LAM: 0.95},
    "beta": {BETA: 0.2, LAM: 0.95},
    "lambda": {BETA: 0.05, LAM: 0.8},
    "both": {BETA: 0.2, LAM: 0.8},
    "alone": {BETA: 0.05, LAM: 0.95, "algorithm.cliprange": 0.1},
}
SHAPE = {"seeds": (0, 1), "steps": 64, "prompts": 40, "diverged": (), "budget": (), "missing": ()}


@pytest.fixture(scope="module")
def crossed(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, StudyRecords]:
    built = build(tmp_path_factory.mktemp("crossed"), arms=CROSSED, baseline="base", **SHAPE)
    return built, load_records(built.folder, built.study)


def test_a_full_product_around_the_baseline_is_a_crossing(crossed: tuple[Built, StudyRecords]) -> None:
    found = crossings(crossed[1])
    assert len(found) == 1
    assert (found[0].rows, found[0].columns) == (BETA, LAM)
    assert found[0].row_values == (0.05, 0.2)
    assert found[0].column_values == (0.8, 0.95)
    assert found[0].arms[0.2, 0.8] == "both"
    assert found[0].baseline == (0.05, 0.95)


def test_heat_map_names_values_and_draws_every_cell(crossed: tuple[Built, StudyRecords]) -> None:
    records = crossed[1]
    with house_style():
        drawn = figure("interactions")(records, analyse(records))
    assert drawn is not None
    assert len(drawn.data) == 4
    left, right = drawn.figure.axes
    assert left.get_xlabel() == right.get_xlabel() == LAM
    assert sum("[" in text.get_text() for text in left.texts) == 4
    assert sum("[" in text.get_text() for text in right.texts) == 1
    (interaction,) = analyse(records).crossings[0].interactions
    assert interaction.contrast.estimate is not None
    row = drawn.data.set_index(["row", "column"]).loc[0.2, 0.8]
    assert row["departure"] == interaction.contrast.estimate.value
    assert drawn.data["departure"].notna().sum() == 1
    assert "outlined" in drawn.caption
    assert "n = 2 seeds" in drawn.caption


SEARCH = {
    "trials": [
        {
            "number": 0,
            "arm": "search-000",
            "overrides": {BETA: 0.1},
            "status": "complete",
            "feasible": True,
            "steps": 64,
        },
        {
            "number": 1,
            "arm": "search-001",
            "overrides": {BETA: 0.01},
            "status": "complete",
            "feasible": False,
            "steps": 64,
        },
        {
            "number": 2,
            "arm": "search-002",
            "overrides": {BETA: 0.3},
            "status": "complete",
            "feasible": True,
            "steps": 64,
        },
        {
            "number": 3,
            "arm": "search-003",
            "overrides": {BETA: 0.0},
            "status": "pruned",
            "feasible": False,
            "steps": 16,
        },
        {
            "number": 4,
            "arm": "search-004",
            "overrides": {BETA: 0.2},
            "status": "complete",
            "feasible": True,
            "steps": 64,
        },
    ],
    "pareto": [0],
    "confirmed": [{"arm": "confirm-1", "number": 0, "overrides": {BETA: 0.1}}],
}
VALUES = ((0.8, 2.0), (0.9, 9.0), (0.7, 1.5), None, (0.6, 1.7))


@pytest.fixture(scope="module")
def searched(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRecords, Findings]:
    built = build(tmp_path_factory.mktemp("searched"), seeds=(0,), steps=64, prompts=10)
    trials = [
        {**trial, "values": {"eval/win_rate": found[0], "eval/kl_per_sequence": found[1]} if found else {}}
        for trial, found in zip(SEARCH["trials"], VALUES, strict=True)  # type: ignore[arg-type]
    ]
    records = load_records(built.folder, built.study)
    return records, replace(analyse(records), search=search_of({**SEARCH, "trials": trials}))


def test_front_confirmed_and_infeasible_are_told_apart(searched: tuple[StudyRecords, Findings]) -> None:
    with house_style():
        drawn = figure("pareto")(*searched)
    assert drawn is not None
    axes = drawn.figure.axes[0]
    assert axes.get_xlabel() == "KL per sequence [nats per sequence]"
    data = drawn.data.set_index("number")
    assert data["front"].tolist() == [True, False, True, False]
    assert data["feasible"].tolist() == [True, False, True, True]
    assert data.loc[0, "confirmed_as"] == "confirm-1"
    assert "confirm-1" in {text.get_text() for text in axes.texts}
    assert {line.get_marker() for line in axes.lines} >= {"D", "o", "x"}
    assert "1 trial without both metrics" in drawn.caption
    assert "without both metrics" in drawn.caption


def test_no_search_no_figure(searched: tuple[StudyRecords, Findings]) -> None:
    assert figure("pareto")(searched[0], replace(searched[1], search=None)) is None


def test_of_several_aims_the_front_is_the_searchs_own(
    searched: tuple[StudyRecords, Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    aims = (Objective(), Objective(metric="eval/kl_per_sequence", direction="minimize"))
    monkeypatch.setattr("reports.figures.tuning.objectives", lambda study: aims)
    with house_style():
        drawn = figure("pareto")(*searched)
    assert drawn is not None
    assert drawn.data.set_index("number")["front"].tolist() == [True, False, False, False]


def test_arms_that_change_a_mapping_are_reported(
    build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.figures.style.save", lambda *_: None)
    monkeypatch.setattr("reports.pages.report.inline_svg", lambda *_: "")
    parts = {"a": {"kind": "learned"}, "b": {"kind": "lexicon"}}
    arms = {
        f"b_{weight:g}": {
            "reward.kind": "composite",
            "reward.parts": {**parts, "b": {"kind": "lexicon", "weight": weight}},
        }
        for weight in (1.0, 3.0)
    }
    built = build(
        tmp_path, seeds=(0,), prompts=4, steps=64, arms=arms, baseline="b_1", diverged=(), budget=(), missing=()
    )
    page = render_report(built.folder, built.study).read_text("utf-8")
    row = page[page.index("<code>reward.parts.b.weight</code>") :]
    assert "b_3: 3.0" in row[: row.index("</tr>")]
