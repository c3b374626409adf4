"""search.json read back, and refused when damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import write_sealed

from pipeline.errors import Damaged
from pipeline.run.layout import Layout, StudyFolder
from reports.records.searches import load_search
from studies.definition.schema import Study, load_study

STUDY = """
question: Which beta?
hypothesis: A small one.
refuted_if: It is not.
seeds: [0]
search: {space: {kl.beta: {low: 0.01, high: 1.0, log: true}}, trials: 2, confirm: {top: 1, seeds: [7, 8]}}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    path = tmp_path_factory.mktemp("search") / "hunt.yaml"
    path.write_text(STUDY, encoding="utf-8")
    return load_study(path)


def content(study: Study) -> dict[str, Any]:
    assert study.search is not None
    trial = {
        "arm": "search-000",
        "overrides": {"kl.beta": 0.1},
        "status": "complete",
        "values": {"eval/win_rate": 0.7},
    }
    pruned = {
        "arm": "search-001",
        "overrides": {"kl.beta": 0.0, "optimiser.lr": 1e-4},
        "status": "pruned",
        "values": {},
    }
    return {
        "search": study.search.model_dump(mode="json"),
        "trials": [
            {"number": 0, **trial, "feasible": True, "steps": 64},
            {"number": 1, **pruned, "feasible": False, "steps": 16},
        ],
        "pareto": [0],
        "confirmed": [{"arm": "confirm-1", "number": 0, "overrides": {"kl.beta": 0.1}}],
    }


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    found = Layout.at(tmp_path).study("hunt", "tiny")
    found.path.mkdir(parents=True)
    return found


def test_it_is_read(folder: StudyFolder, study: Study) -> None:
    assert load_search(folder, study) is None
    write_sealed(folder.search_file, content(study))
    found = load_search(folder, study)
    assert found is not None
    assert [trial.number for trial in found.trials] == [0, 1]
    assert found.trials[0].values == {"eval/win_rate": 0.7}
    assert found.metrics == ["eval/win_rate"]
    assert found.knobs == ["kl.beta", "optimiser.lr"]
    assert found.confirmed == {"confirm-1": 0}


def test_a_file_of_another_search_is_not_of_this_one(folder: StudyFolder, study: Study) -> None:
    assert study.search is not None
    wider = study.model_copy(update={"search": study.search.model_copy(update={"seed": 5})})
    write_sealed(folder.search_file, content(study))
    assert load_search(folder, study) is not None
    assert load_search(folder, wider) is None
    assert load_search(folder, study.model_copy(update={"search": None})) is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null"])
def test_a_damaged_file_is_named(folder: StudyFolder, study: Study, text: str) -> None:
    (folder.path / "search.json").write_text(text, encoding="utf-8")
    with pytest.raises(Damaged, match=r"search\.json is damaged: .*; run study 'hunt' .*again"):
        load_search(folder, study)


@pytest.mark.parametrize(
    "change", [{"trials": 3}, {"trials": [{}]}, {"pareto": ["x"]}, {"confirmed": [{"arm": "confirm-1"}]}]
)
def test_a_damaged_part_is_named(folder: StudyFolder, study: Study, change: dict[str, Any]) -> None:
    write_sealed(folder.search_file, {**content(study), **change})
    with pytest.raises(Damaged, match=r"search\.json is damaged: "):
        load_search(folder, study)
