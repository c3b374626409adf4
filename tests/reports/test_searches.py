"""search.json read back, and refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.layout import Layout, StudyFolder
from reports.searches import load_search


def content() -> dict[str, Any]:
    trial = {"arm": "search-000", "overrides": {"ppo.kl_coef": 0.1}, "status": "complete", "values": {"eval/win_rate": 0.7}}
    pruned = {"arm": "search-001", "overrides": {"ppo.kl_coef": 0.0, "ppo.lr": 1e-4}, "status": "pruned", "values": {}}
    return {
        "trials": [{"number": 0, **trial, "feasible": True, "steps": 64}, {"number": 1, **pruned, "feasible": False, "steps": 16}],
        "pareto": [0],
        "confirmed": [{"arm": "confirm-1", "number": 0, "overrides": {"ppo.kl_coef": 0.1}}],
        "importance": {"ppo.kl_coef": 0.8, "ppo.lr": 0.2},
        "importance_n": 2,
    }


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    found = Layout.at(tmp_path).study("hunt", "tiny")
    found.path.mkdir(parents=True)
    return found


def test_it_is_read(folder: StudyFolder) -> None:
    assert load_search(folder) is None
    (folder.path / "search.json").write_text(json.dumps(content()), encoding="utf-8")
    found = load_search(folder)
    assert found is not None
    assert [trial.number for trial in found.trials] == [0, 1]
    assert found.trials[0].values == {"eval/win_rate": 0.7}
    assert found.metrics == ["eval/win_rate"]
    assert found.knobs == ["ppo.kl_coef", "ppo.lr"]
    assert found.confirmed == {"confirm-1": 0}
    assert (found.importance["ppo.kl_coef"], found.importance_n) == (0.8, 2)


def test_an_unfinished_search_has_no_importance(folder: StudyFolder) -> None:
    unfinished = {**content(), "pareto": [], "confirmed": []}
    del unfinished["importance"], unfinished["importance_n"]
    (folder.path / "search.json").write_text(json.dumps(unfinished), encoding="utf-8")
    found = load_search(folder)
    assert found is not None
    assert (found.importance, found.importance_n, found.pareto) == ({}, 0, ())


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"trials": 3, "pareto": [], "confirmed": []}', '{"trials": [{}], "pareto": [], "confirmed": []}']
)
def test_a_damaged_file_is_named(folder: StudyFolder, text: str) -> None:
    (folder.path / "search.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"search\.json: damaged file .*run the study again"):
        load_search(folder)
