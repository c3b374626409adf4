"""The methods paragraphs have the numbers of the study, and nothing that was not done."""

from __future__ import annotations

from dataclasses import replace

from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.statistics.coverage import coverage_with, largest
from reports.text.methods import methods
from reports.text.words import percent


def test_numbers_are_those_of_the_study(records: StudyRecords, findings: Findings) -> None:
    text, known = methods(records, findings), coverage_with(3)
    families = [largest()[name] for name in ("11 arms at the margin", "10 higher, no effect")]
    wanted = {
        "Design": ["4 arms", "3 seeds (0, 1, 2)", "9 complete, 1 budget, 1 diverged and 1 missing"],
        "Training": ["2,048 gradient steps of PPO", "88 %"],
        "Evaluation": ["512 held-out prompts", "8 answers"],
        "Estimates": [
            f"{percent(known.lowest)} to {percent(known.highest)} % with 3 seeds",
            *(f"{100 * after:.1f} % (without the correction {100 * before:.0f} %)" for before, after in families),
        ],
        "Comparisons": ["3 arms", "win rate that matters is 0.050"],
        "Drift": ["at most 5 % of studies"],
        "Bounds": ["4,300 reference samples"],
        "Claims": ["1 claim"],
    }
    assert list(text) == list(wanted)
    assert [(title, one) for title, words in wanted.items() for one in words if one not in text[title]] == []
    bare = replace(records, study=records.study.model_copy(update={"falsifiers": ()}))
    assert {"Drift", "Claims", "Comparisons"}.isdisjoint(methods(bare, replace(findings, alarms=(), effects=())))
