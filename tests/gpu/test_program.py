"""The program behind `make gpu`, without a card: what it says where there is none, what it makes of tests that fail,
crash or hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu import __main__ as program
from gpu.base import QWEN, SHAPES, measured_trial
from gpu.card import datasheet
from gpu.measure import fitted, seconds_by_phase
from gpu.page import render
from gpu.sections import SECTIONS, Section, run

from pipeline.config.loading import load_config
from pipeline.forecast.advice import predict
from pipeline.forecast.shapes import shape_of

CPU = {"device": "cpu", "name": "CPU", "half_flops": 1e9, "copy_bytes": 1e9}


def statuses(report: dict[str, Any]) -> set[str]:
    return {item["status"] for section in report["sections"] for item in section["items"]}


def test_without_a_card_every_item_says_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert program.main(["--out", str(tmp_path)]) == 3
    assert capsys.readouterr().out.splitlines()[0] == "Not tested: no CUDA device is visible."
    report = json.loads((tmp_path / "no-card.json").read_text())
    assert [section["name"] for section in report["sections"]] == [section.name for section in SECTIONS]
    assert all(section["items"] for section in report["sections"])
    assert statuses(report) == {"not tested"}
    assert (tmp_path / "no-card.md").read_text().startswith("# No card: not tested")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("False\n", "no CUDA device is visible"),
        (
            "Traceback\nOSError: libcudnn.so.9: cannot open",
            "torch could not be asked for a CUDA device: OSError: libcudnn",
        ),
        ("no answer within 120 s", "torch could not be asked for a CUDA device: no answer within 120 s"),
        ("", "torch could not be asked for a CUDA device: no answer"),
    ],
)
def test_a_driver_that_hangs_is_not_called_no_card(monkeypatch: pytest.MonkeyPatch, said: str, why: str) -> None:
    monkeypatch.setattr(program, "_call", lambda *_: said)
    assert program._card("cuda")[1].startswith(why)


def test_it_ends_in_one_line_where_the_page_cannot_be_written_or_the_user_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(program, "_card", lambda device: ({}, "no card"))
    assert program.guarded(["--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"make gpu: {tmp_path / 'file'}: File exists\n"

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_card", stopped)
    assert program.guarded(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("interrupted")


def test_a_missing_package_is_named_and_no_stand_in_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.missing.__globals__["REQUIRED"], "no_such_module", "no-such-package")
    assert program.main(["--out", str(tmp_path)]) == 3
    report = json.loads((tmp_path / "no-card.json").read_text())
    assert "not installed: no-such-package" in report["headline"]
    assert statuses(report) == {"not tested"}


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
def test_a_crash_or_a_hang_costs_one_test_and_is_told(tmp_path: Path, crash: str, limit: float, said: str) -> None:
    (tmp_path / "test_badly.py").write_text(BADLY.format(crash=crash))
    found = run(Section("badly", "Badly", 0, tests=str(tmp_path / "test_badly.py")), limit, CPU, "tiny")
    assert [item["status"] for item in found.items] == ["passed", "not tested", "failed", "failed", "failed"]
    assert found.items[0]["values"] == {"figure": 3}
    assert found.items[1]["why"] == "no second card"
    assert "assert 1 == 2" in found.items[2]["why"]
    assert found.items[3]["why"] == found.items[4]["why"] == f"did not end: {said}"


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
    report = {"sections": [{"items": [{"status": one} for one in results]}], "rehearsal": rehearsal}
    assert program._verdict(report, "")[0] == code


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("Tesla T4", 65e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
    ],
)
def test_cards_are_known_by_name(name: str, flops: float) -> None:
    found = datasheet(name)
    assert found is not None
    assert found[0] == flops


def test_an_unknown_card_has_no_datasheet() -> None:
    assert datasheet("NVIDIA T400 4GB") is None


def test_the_measured_shape_is_that_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    config = measured_trial(tmp_path, "cuda", "qwen0.5b")
    t4 = load_config("t4")
    assert shape_of(config) == shape_of(t4)
    same = ("batch_size", "response_length", "num_epochs", "num_mini_batches")
    assert all(getattr(config.train, name) == getattr(t4.train, name) for name in same)
    assert (config.runtime.micro_batch_size, config.runtime.gradient_checkpointing) == (
        t4.runtime.micro_batch_size,
        True,
    )
    ours, theirs = predict(config), predict(t4)
    assert ours is not None
    assert theirs is not None
    assert ours.stage_gib("train") == pytest.approx(theirs.stage_gib("train"), rel=0.02)


def test_a_smaller_card_gets_fewer_rows_and_the_page_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    whole = measured_trial(tmp_path, "cuda", "qwen0.5b")
    found = predict(whole)
    assert found is not None
    assert fitted(whole, found.total_gib + 0.1) == (whole, [])
    smaller, notes = fitted(whole, found.total_gib - 0.5)
    assert smaller.runtime.micro_batch_size < whole.runtime.micro_batch_size
    assert "fewer rows" in notes[0]


def test_seconds_are_those_of_the_updates_after_the_first() -> None:
    def ledger(times: float) -> dict[str, Any]:
        return {
            "wall": 9.0 * times,
            "head": 0.5 * times,
            "seconds": {"train": 4.0 * times, "generate": 2.0 * times},
            "flops": {"train": 8e12 * times},
            "bytes": {"train": 1e9 * times},
        }

    lines = {line["phase"]: line for line in seconds_by_phase([ledger(3), ledger(4), ledger(5)], (4e12, 1e12))}
    assert (lines["train"]["seconds"], lines["train"]["roofline_s"], lines["train"]["of_roofline"]) == (4.0, 2.0, 0.5)
    assert (lines["train"]["n"], lines["of train: head"]["seconds"]) == (2, 0.5)


@pytest.mark.slow
def test_the_measurements_run_on_a_cpu_and_land_on_the_page(tmp_path: Path) -> None:
    section = next(one for one in SECTIONS if one.name == "measure")
    assert "tiny" in SHAPES
    found = run(section, 300, CPU, "tiny")
    assert [item["status"] for item in found.items] == ["passed"], found.items
    assert {line["what"] for line in found.measured["memory_by_stage"]} >= {"sft", "reward", "train", "evaluate"}
    assert {"policy", "gradients", "optimiser", "reference", "reward"} <= {
        line["what"] for line in found.measured["memory_by_component"]
    }
    by_phase = {line["phase"]: line["seconds"] for line in found.measured["seconds_by_phase"]}
    assert 0 < by_phase["of train: head"] < by_phase["train"]
    page = render(
        {
            "card": {"name": "A card"},
            "exit_code": 0,
            "headline": "1 passed.",
            "commit": "abc",
            "versions": {"torch": "2"},
            "seconds": 1.0,
            "sections": [vars(found)],
        }
    )
    assert "| train |" in page
    assert "rehearsal on a CPU" in page
    assert "None" not in page
