"""The methods paragraphs say what was done, and nothing that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.config.rewards import PartConfig, RewardConfig
from reports.findings.findings import Findings, analyse
from reports.records.load import StudyRecords, load_records
from reports.statistics.coverage import coverage_with
from reports.statistics.families import largest
from reports.text.methods import _scorer as scorer
from reports.text.methods import methods
from reports.text.words import percent

if TYPE_CHECKING:
    from tests.reports.conftest import Builder


def said(records: StudyRecords, findings: Findings) -> dict[str, str]:
    return {part.title: part.text for part in methods(records, findings)}


def test_design_training_and_evaluation_are_those_of_the_study(records: StudyRecords, findings: Findings) -> None:
    text = said(records, findings)
    assert "4 arms ran, each on the same 3 seeds (0, 1, 2), against the baseline beta_0.05" in text["Design"]
    assert "9 complete, 1 budget, 1 diverged and 1 missing" in text["Design"]
    assert "shown as censored" in text["Design"]
    assert "takes 2,048 gradient steps" in text["Training"]
    assert "agrees with the judge on 88 %" in text["Training"]
    assert "answers 512 held-out prompts once each" in text["Evaluation"]
    assert (
        "8 answers to each of them were drawn once for each reference policy, with random numbers independent"
        in text["Evaluation"]
    )
    assert "a parser of the grammar" in text["Evaluation"]


def test_only_statistics_that_were_used_are_described(records: StudyRecords, findings: Findings) -> None:
    text = said(records, findings)
    assert "posterior interval of a hierarchical model" in text["Estimates"]
    assert "One seed has no information" not in text["Estimates"]
    assert "make coverage" in text["Estimates"]
    known = coverage_with(3)
    assert f"{percent(known.lowest)} to {percent(known.highest)} % with 3 seeds" in text["Estimates"]
    for family in ("11 arms at the margin", "10 higher, no effect"):
        before, after = largest()[family]
        assert f"{100 * after:.1f} % (without the correction {100 * before:.0f} %)" in text["Estimates"]
    assert "Student's interval over seeds" in text["Estimates"]
    assert "over the 3 arms of one metric" in text["Comparisons"]
    assert "The smallest difference in win rate that matters is 0.050, by default." in text["Comparisons"]
    assert "equal drift" not in text["Drift"]
    assert "at most 5 % of studies without a trend raise any alarm" in text["Drift"]
    assert "4,300 reference samples" in text["Bounds"]
    assert "1 claim comes with" in text["Claims"]
    bare = said(
        replace(records, study=records.study.model_copy(update={"falsifiers": ()})),
        replace(findings, matched=(), alarms=(), effects=()),
    )
    assert {"Drift", "Claims", "Comparisons"}.isdisjoint(bare)


@pytest.mark.parametrize(
    ("source", "reward", "says"),
    [
        ("judge", {"pairs": 40}, "on 40 pairs of reference samples, labelled with noise by the judge"),
        ("judge:words", {"pairs": 40}, "on 40 pairs of reference samples, labelled with noise by the judge words"),
        ("a.jsonl", {"pairs": 40}, "on at most 40 given pairs (a.jsonl)"),
        (
            "judge",
            {"pairs": 40, "ranked": 4},
            "on all pairs of 6 rankings of 4 reference samples (6 pairs each), put in order with noise by the judge",
        ),
        (
            "judge:words",
            {"pairs": 40, "ranked": 3, "ranking_loss": "plackett_luce"},
            "on the whole orders (Plackett-Luce) of 13 rankings of 3 reference samples (3 pairs each), put in order"
            " with noise by the judge words",
        ),
        (
            "a.jsonl",
            {"pairs": 40, "ranked": 3},
            "on all pairs of at most 13 given rankings of 3 answers (3 pairs each) from a.jsonl",
        ),
    ],
)
def test_what_a_reward_learns_from_is_named(source: str, reward: dict[str, Any], says: str) -> None:
    found = scorer(PartConfig(kind="learned", preferences=source), RewardConfig(preferences=source, **reward))
    assert found.endswith(says)


def test_the_comparison_at_equal_drift_names_its_method(strengths: StudyRecords) -> None:
    text = said(strengths, analyse(strengths))["Drift"]
    assert "what fixed beta (beta_0.07, beta_0.05 and beta_0.035) reaches on that seed at the KL" in text
    assert "Nothing is extrapolated" in text


def test_a_single_arm_and_seed_have_nothing_to_compare(build: Builder, tmp_path: Path) -> None:
    built = build(
        tmp_path,
        arms={"only": 0.05},
        baseline="only",
        seeds=(0,),
        steps=64,
        prompts=6,
        budget=(),
        diverged=(),
        missing=(),
    )
    records = load_records(built.folder, built.study)
    text = said(records, analyse(records))
    assert "1 arm ran, each on the same 1 seed (0)" in text["Design"]
    assert "Comparisons" not in text
    assert "no interval" in text["Estimates"]
    assert "One seed has no information" in text["Estimates"]


def test_nothing_evaluated_is_said(build: Builder, tmp_path: Path) -> None:
    built = build(
        tmp_path,
        seeds=(0,),
        steps=64,
        missing=tuple((f"beta_{b}", 0) for b in ("0", "0.01", "0.05", "0.2")),
        diverged=(),
        budget=(),
    )
    records = load_records(built.folder, built.study)
    assert "nothing was estimated" in said(records, analyse(records))["Estimates"]
