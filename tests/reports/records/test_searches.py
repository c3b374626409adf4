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
WON = {
    "arm": "search-000", "overrides": {"kl.beta": 0.1}, "status": "complete", "values": {"eval/win_rate": 0.7},
    "feasible": True, "steps": 64,
}  # fmt: skip
LOST = {
    "arm": "search-001", "overrides": {"kl.beta": 0.0, "optimiser.lr": 1e-4}, "status": "pruned", "values": {},
    "feasible": False, "steps": 16,
}  # fmt: skip


@pytest.fixture
def searched(tmp_path: Path) -> tuple[StudyFolder, Study, dict[str, Any]]:
    (tmp_path / "hunt.yaml").write_text(STUDY, encoding="utf-8")
    study, folder = load_study(tmp_path / "hunt.yaml"), Layout.at(tmp_path).study("hunt", "tiny")
    folder.path.mkdir(parents=True)
    assert study.search is not None
    return folder, study, {
        "search": study.search.model_dump(mode="json"),
        "trials": [{"number": 0, **WON}, {"number": 1, **LOST}],
        "pareto": [0],
        "confirmed": [{"arm": "confirm-1", "number": 0, "overrides": {"kl.beta": 0.1}}],
    }  # fmt: skip


def test_it_is_read_if_it_is_of_this_search(searched: tuple[StudyFolder, Study, dict[str, Any]]) -> None:
    folder, study, content = searched
    assert load_search(folder, study) is None
    write_sealed(folder.search_file, content)
    found = load_search(folder, study.model_copy(update={"seeds": (7, 8)}))  # as its confirmation has them
    assert found is not None
    assert [(trial.number, trial.values) for trial in found.trials] == [(0, {"eval/win_rate": 0.7}), (1, {})]
    assert (found.metrics, found.knobs) == (["eval/win_rate"], ["kl.beta", "optimiser.lr"])
    assert (found.pareto, found.confirmed) == ((0,), {"confirm-1": 0})
    assert study.search is not None
    for other in (study.search.model_copy(update={"seed": 5}), None):
        assert load_search(folder, study.model_copy(update={"search": other})) is None


@pytest.mark.parametrize(
    "change",
    [
        "{",
        "[]",
        "{}",
        "null",
        {"trials": 3},
        {"trials": [{}]},
        {"pareto": ["x"]},
        {"confirmed": [{"arm": "confirm-1"}]},
    ],
)
def test_a_damaged_file_is_named(searched: tuple[StudyFolder, Study, dict[str, Any]], change: Any) -> None:
    folder, study, content = searched
    if isinstance(change, dict):
        write_sealed(folder.search_file, {**content, **change})
    else:
        folder.search_file.write_text(change, encoding="utf-8")
    with pytest.raises(Damaged, match=r"search\.json is damaged: .*; run study 'hunt' .*again"):
        load_search(folder, study)
