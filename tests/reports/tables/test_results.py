"""What the tables of results, drift and search say, against the findings they are made from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reports.findings.findings import Findings, analyse
from reports.findings.pairs import pair_of
from reports.records.load import StudyRecords, load_records
from reports.records.searches import SearchResult
from reports.statistics import two_level
from reports.statistics.coverage import published
from reports.tables.results import all_tables, arm_table
from reports.tables.table import Table
from studies.definition.search import Tried

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.conftest import Builder


@pytest.fixture(scope="module")
def tables(records: StudyRecords, findings: Findings) -> dict[str, Table]:
    return {table.name: table for table in all_tables(records, findings)}


def cells(table: Table, arm: str) -> list[str]:
    row = next(row for row in table.rows if row[0].text == arm)
    return [f"{cell.text} {cell.detail}".strip() for cell in row]


def test_iqm_stands_beside_the_mean(tables: dict[str, Table], records: StudyRecords, findings: Findings) -> None:
    gold = records.prompts[records.prompts["arm"] == "beta_0.05"]["policy_gold"].to_numpy(float)
    from scipy.stats import trim_mean

    found = findings.arm("beta_0.05").iqm["eval/gold"]
    assert found.value == pytest.approx(trim_mean(gold, 0.25))
    frame = tables["robust"].frame.set_index("arm")
    assert frame.loc["beta_0.05", "eval/gold_iqm"] == found.value
    assert frame.loc["beta_0.05", "eval/gold"] == findings.arm("beta_0.05").estimates["eval/gold"].value
    assert all(cell.detail.startswith("[") for row in tables["robust"].rows for cell in row[2:])


def test_improvement_is_the_share_of_won_prompts(
    records: StudyRecords, findings: Findings, tables: dict[str, Table]
) -> None:
    frame = records.prompts.set_index(["arm", "seed", "prompt_id"])["policy_gold"].astype(float)
    shared = [0, 1]
    pairs = [(frame["beta_0.01", seed], frame["beta_0.05", seed]) for seed in shared]
    wanted = np.mean([np.mean(np.where(a == b, 0.5, a > b)) for a, b in pairs])
    found = next(one for one in findings.improvements if one.arm == "beta_0.01")
    assert found.metric == "eval/gold"
    assert found.estimate.value == pytest.approx(wanted)
    assert found.estimate.seeds == 2
    assert tables["sensitivity"].frame.set_index("arm").loc["beta_0.01", "improvement"] == found.estimate.value


def test_power_uses_the_error_of_the_effect(records: StudyRecords, findings: Findings) -> None:
    from reports.statistics.power import detectable

    for one in findings.power:
        effect = next(effect for effect in findings.effects_on(one.metric) if effect.arm == one.arm)
        assert effect.estimate is not None
        pair = pair_of(records, one.metric, one.arm, "beta_0.05")
        assert pair is not None
        assert one.detectable == pytest.approx(detectable(pair.moments(), 0.05 / 3))
        assert one.target == 0.05
        assert one.suffices == (one.detectable <= 0.05)
        assert one.seeds_needed is None or one.seeds_needed > one.seeds


def test_coverage_is_shown_by_seeds_and_spread(tables: dict[str, Table]) -> None:
    table = tables["coverage"]
    assert [row[0].text for row in table.rows] == ["1", "2", "3", "5", "10"]
    equal = [cell for cell in published() if (cell.seeds, cell.spread) == (5, "equal")]
    lowest = min(min(cell.mean_coverage, cell.difference_coverage) for cell in equal)
    assert table.rows[3][1].text.startswith(f"{100 * lowest:.0f} to ")
    worst = max(cell.family_wise_error for cell in published() if cell.seeds == 5)
    assert table.rows[3][-1].text == f"{100 * worst:.1f}"
    assert len(table.frame) == len(published())


def test_divergence_against_the_baseline(tables: dict[str, Table]) -> None:
    row = cells(tables["statuses"], "beta_0")
    assert row[1] == "3"
    wanted = two_level.rate_difference(1, 3, 0, 3)
    frame = tables["statuses"].frame.set_index("arm")
    assert frame.loc["beta_0", "divergence_difference_high"] == wanted.high
    assert row[-1].startswith("+0.333 [")
    assert cells(tables["statuses"], "beta_0.05")[-1] == "–"
    assert frame.loc["beta_0.01", "ended"] == 2


def test_alarms_say_trials_and_where(tables: dict[str, Table]) -> None:
    assert tables["matched_kl"].rows == ()
    assert cells(tables["alarms"], "beta_0")[1] == "3 of 3"
    assert cells(tables["alarms"], "beta_0.05")[1:] == ["0 of 3", "–", "–", "–", "–"]
    assert len(tables["alarms"].frame) == 3


def test_equal_drift_says_kl_neighbours_and_why_not(strengths: StudyRecords) -> None:
    found = analyse(strengths)
    table = next(one for one in all_tables(strengths, found) if one.name == "matched_kl")
    gold = [row for row in table.rows if row[1].text == "gold reward"]
    assert [row[0].text for row in gold] == ["tight", "tighter", "loose"]
    tight = next(row for row in found.matched if (row.arm, row.metric) == ("tight", "eval/gold"))
    assert gold[0][3].detail == "beta_0.05 and beta_0.035"
    assert gold[0][7].text == "3 × 200"
    assert gold[2][-1].text == "not compared"
    assert gold[2][-1].detail == "3 of 3 seeds ended beyond the arms of fixed beta"
    assert gold[2][6].text == "–"
    frame = table.frame[table.frame["metric"] == "eval/gold"].set_index("arm")
    assert tight.difference is not None
    assert frame.loc["tight", "difference_low"] == tight.difference.low
    assert frame.loc["loose", "not_compared"] == gold[2][-1].detail
    assert "fixed beta: beta_0.07, beta_0.05 and beta_0.035" in table.note


def marked(records: StudyRecords, findings: Findings) -> dict[str, list[str]]:
    """Metric column -> arms in bold."""
    table = arm_table(records, findings)
    return {
        head.text: [row[0].text for row in table.rows if row[index].bold]
        for index, head in enumerate(table.heads)
        if any(row[index].bold for row in table.rows)
    }


def test_best_is_bold_only_when_all_differences_say_so(build: Builder, tmp_path: Path) -> None:
    arms = {"beta_0": 0.0, "beta_0.05": 0.05, "beta_0.2": 0.2}
    built = build(tmp_path, arms=arms, steps=64, prompts=300, diverged=(), budget=(), missing=())
    records = load_records(built.folder, built.study)

    def with_gold(shift: dict[str, float]) -> StudyRecords:
        prompts = records.prompts.copy()
        noise = np.random.default_rng(0).normal(0, 1.0, len(prompts))
        prompts["policy_gold"] = prompts["arm"].map(shift) + noise
        return dataclasses.replace(records, prompts=prompts)

    clear = with_gold({"beta_0": 0.0, "beta_0.05": 0.0, "beta_0.2": 1.0})
    found = analyse(clear)
    assert found.best["eval/gold"] == "beta_0.2"
    assert marked(clear, found)["gold reward"] == ["beta_0.2"]
    assert "Bold (" in arm_table(clear, found).note
    tied = with_gold({"beta_0": 0.0, "beta_0.05": 0.95, "beta_0.2": 1.0})
    found = analyse(tied)
    assert "eval/gold" not in found.best
    assert "gold reward" not in marked(tied, found)


def test_drift_is_never_bold(records: StudyRecords, findings: Findings) -> None:
    assert not {"KL per token", "KL per sequence", "entropy"} & marked(records, findings).keys()


def test_a_single_arm_is_not_the_best_of_all(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, arms={"beta_0.05": 0.05}, steps=64, prompts=20, diverged=(), budget=(), missing=())
    assert analyse(load_records(built.folder, built.study)).best == {}


def test_search_tables(records: StudyRecords, findings: Findings) -> None:
    won = Tried(0, "search-000", {"kl.beta": 0.1}, "complete", {"eval/win_rate": 0.81234}, True, 64)
    lost = Tried(1, "search-001", {"kl.beta": 1e-5}, "pruned", {}, False, 16)
    search = SearchResult((won, lost), (0,), {"confirm-1": 0})
    tables = {table.name: table for table in all_tables(records, dataclasses.replace(findings, search=search))}
    assert [cell.text for cell in tables["tuning"].rows[0]] == [
        "0",
        "0.1",
        "complete",
        "64",
        "0.812",
        "kept",
        "on it",
        "confirm-1",
    ]
    assert [cell.text for cell in tables["tuning"].rows[1]] == ["1", "1e-05", "pruned", "16", "–", "broken", "–", "–"]
    assert tables["tuning"].frame["eval/win_rate"][0] == 0.81234
    assert "tuning" not in {table.name for table in all_tables(records, findings)}
