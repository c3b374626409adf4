"""The methods paragraphs say what was done, with its numbers, and nothing that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.rewards.settings import PartConfig, RewardConfig
from reports.findings.findings import Findings, analyse
from reports.records.load import StudyRecords, load_records
from reports.statistics.coverage import coverage_with, largest
from reports.text.methods import methods
from reports.text.say import say
from reports.text.words import percent

if TYPE_CHECKING:
    from tests.reports.conftest import Builder


def test_numbers_are_those_of_the_study(records: StudyRecords, findings: Findings) -> None:
    text, known = methods(records, findings), coverage_with(3)
    wanted = {
        "Design": ["4 arms", "3 seeds (0, 1, 2)", "9 complete, 1 budget, 1 diverged and 1 missing", "censored"],
        "Training": ["2,048 gradient steps of PPO", "88 %"],
        "Evaluation": ["512 held-out prompts", "8 answers", "a parser of the grammar", "held-out texts"],
        "Estimates": [
            "hierarchical model", "make coverage",
            f"{percent(known.lowest)} to {percent(known.highest)} % with 3 seeds",
            *(f"{100 * after:.1f} % (without the correction {100 * before:.0f} %)"
              for before, after in map(largest().get, ("11 arms at the margin", "10 higher, no effect"))),
            "Student",
        ],
        "Comparisons": ["3 arms", "win rate that matters is 0.050"],
        "Drift": ["at most 5 % of studies"],
        "Bounds": ["4,300 reference samples"],
        "Claims": ["1 claim"],
    }  # fmt: skip
    assert list(text) == list(wanted)
    assert [(title, one) for title, words in wanted.items() for one in words if one not in text[title]] == []
    assert "One seed has no information" not in text["Estimates"]
    assert "equal drift" not in text["Drift"]
    bare = replace(records, study=records.study.model_copy(update={"falsifiers": ()}))
    assert {"Drift", "Claims", "Comparisons"}.isdisjoint(methods(bare, replace(findings, alarms=(), effects=())))


@pytest.mark.parametrize(
    ("source", "reward", "words"),
    [
        ("judge", {}, ["40 pairs of reference samples", "by the judge"]),
        ("judge:words", {}, ["by the judge words"]),
        ("a.jsonl", {}, ["at most 40 given pairs (a.jsonl)"]),
        ("judge", {"ranked": 4}, ["all pairs of 6 rankings of 4", "(6 pairs each)", "by the judge"]),
        ("judge", {"ranked": 3, "ranking_loss": "plackett_luce"}, ["(Plackett-Luce) of 13 rankings of 3"]),
        ("a.jsonl", {"ranked": 3}, ["at most 13 given rankings of 3 answers", "a.jsonl"]),
        ("judge", {"ensemble": 3, "combine": "worst_k", "worst_k": 2}, ["2 lowest scores", "ensemble of 3"]),
    ],
)
def test_what_a_reward_learns_from_is_named(source: str, reward: dict[str, Any], words: list[str]) -> None:
    part, config = (
        PartConfig(kind="learned", preferences=source),
        RewardConfig.model_validate({"preferences": source, "learned": {"pairs": 40, **reward}}),
    )
    text = say("methods", "scorer", part, config)
    assert [word for word in words if word not in text] == [], text


def test_the_comparison_at_equal_drift_names_its_method(strengths: StudyRecords) -> None:
    assert "fixed beta (beta_0.07, beta_0.05 and beta_0.035)" in methods(strengths, analyse(strengths))["Drift"]


@pytest.mark.parametrize("missing", [(), (("only", 0),)])
def test_a_single_arm_and_seed_have_nothing_to_compare(build: Builder, tmp_path: Path, missing: Any) -> None:
    shape = {"arms": {"only": 0.05}, "baseline": "only", "seeds": (0,), "steps": 64, "prompts": 6}
    built = build(tmp_path, **shape, budget=(), diverged=(), missing=missing)
    records = load_records(built.folder, built.study)
    text = methods(records, analyse(records))
    assert "1 arm ran" in text["Design"]
    assert "Comparisons" not in text
    assert ("nothing was estimated" if missing else "no interval") in text["Estimates"]
