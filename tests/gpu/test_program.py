"""The program behind `make gpu`, without a card: its message, and a rehearsal of its measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu import __main__ as program


def test_without_a_card_nothing_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert program.main(["--out", str(tmp_path)]) == 3
    report = json.loads((tmp_path / "no-card.json").read_text())
    assert "no CUDA device" in report["headline"]
    assert list(report["sections"]) == list(program.SECTIONS)
    assert {item["status"] for one in report["sections"].values() for item in one["items"]} == {"not tested"}
    assert all((program.HERE / f"test_{name}.py").exists() for name in program.SECTIONS)


@pytest.mark.slow
def test_the_measurements_run_on_a_cpu_and_land_on_the_page(tmp_path: Path) -> None:
    assert program.main(["--only", "measure", "--device", "cpu", "--out", str(tmp_path)]) == 3
    report, page = (json.loads((tmp_path / "rehearsal.json").read_text()), (tmp_path / "rehearsal.md").read_text())
    (item,) = report["sections"]["measure"]["items"]
    assert item["status"] == "passed", item
    values = item["values"]
    assert {row["stage"] for row in values["memory by stage"]} >= {"sft", "reward", "train", "evaluate"}
    assert all(row["seconds (median)"] > 0 for row in values["seconds by phase of an update"])
    assert "| train |" in page
    assert "None" not in page
