"""The program behind `make gpu`, without a card: its message where there is none, its record of tests that fail,
crash or hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu import __main__ as program
from gpu.page import render

CPU = {"device": "cpu", "name": "CPU"}


def statuses(section: dict[str, Any]) -> list[str]:
    return [item["status"] for item in section["items"]]


def test_without_a_card_every_section_says_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert program.main(["--out", str(tmp_path)]) == 3
    assert capsys.readouterr().out.splitlines()[0] == "Not tested: no CUDA device is visible."
    report = json.loads((tmp_path / "no-card.json").read_text())
    assert list(report["sections"]) == list(program.SECTIONS)
    assert all(statuses(section) == ["not tested"] for section in report["sections"].values())
    assert (tmp_path / "no-card.md").read_text().startswith("# No card: Not tested")
    assert all((program.HERE / f"test_{name}.py").exists() for name in program.SECTIONS)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "REQUIRED", ("pytest", "no-such-package"))
    assert program.main(["--out", str(tmp_path)]) == 3
    assert "not installed: no-such-package" in json.loads((tmp_path / "no-card.json").read_text())["headline"]


BADLY = """
import os, time, pytest
def test_passes(record_property): record_property("figure", 3)
def test_skips(): pytest.skip("no second card")
def test_fails(): assert 1 == 2
def test_crashes(): {crash}
def test_never_reached(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("crash", "limit", "said"),
    [("os._exit(9)", 120, "exit code 9"), ("time.sleep(600)", 12, "not finished after 12 s")],
)
def test_a_crash_or_a_hang_costs_one_test(tmp_path: Path, crash: str, limit: float, said: str) -> None:
    (tmp_path / "test_badly.py").write_text(BADLY.format(crash=crash))
    items = program.run("head", limit, CPU, "tiny", tmp_path / "test_badly.py")["items"]
    assert statuses({"items": items}) == ["passed", "not tested", "failed", "failed", "failed"]
    assert items[0]["values"] == {"figure": 3}
    assert items[1]["why"] == "no second card"
    assert "assert 1 == 2" in items[2]["why"]
    assert items[3]["why"] == items[4]["why"] == f"did not end: {said}"


@pytest.mark.parametrize(
    ("results", "rehearsal", "code"),
    [
        (["passed", "not tested"], False, 0),
        (["passed", "failed"], False, 1),
        (["not tested"], False, 3),
        (["passed"], True, 3),
    ],
)
def test_the_exit_code(results: list[str], rehearsal: bool, code: int) -> None:
    report = {"sections": {"x": {"items": [{"status": one} for one in results]}}, "rehearsal": rehearsal}
    assert program.verdict(report, "")[0] == code


@pytest.mark.slow
def test_the_measurements_run_on_a_cpu_and_land_on_the_page(tmp_path: Path) -> None:
    found = program.run("measure", 300, CPU, "tiny")
    (item,) = found["items"]
    assert item["status"] == "passed", item
    values = item["values"]
    assert {row["what"] for row in values["memory by stage"]} >= {"sft", "reward", "train", "evaluate"}
    parts = {row["what"] for row in values["memory of training by component"]}
    assert parts >= {"policy", "gradients", "optimiser", "reference", "reward"}
    assert all(row["seconds (median)"] > 0 for row in values["seconds by phase of an update"])
    page = render({"card": {"name": "A card"}, "headline": "1 passed.", "sections": {"measure": found}})
    assert "| train |" in page
    assert "None" not in page
