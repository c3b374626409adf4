"""The program behind `make gpu`, without a card: what it says where there is none, what it makes of tests that fail,
crash or hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu import __main__ as program
from gpu.card import datasheet
from gpu.hardware import QWEN, measured_trial
from gpu.page import render
from gpu.test_measure import fitted, seconds_by_phase

from pipeline.config.loading import load_config
from pipeline.forecast.advice import predict
from pipeline.forecast.shapes import shape_of

CPU = {"device": "cpu", "name": "CPU", "half_flops": 1e9, "copy_bytes": 1e9}


def statuses(section: dict[str, Any]) -> list[str]:
    return [item["status"] for item in section["items"]]


def test_without_a_card_every_section_says_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert program.main(["--out", str(tmp_path)]) == 3
    assert capsys.readouterr().out.splitlines()[0] == "Not tested: no CUDA device is visible."
    report = json.loads((tmp_path / "no-card.json").read_text())
    assert [section["name"] for section in report["sections"]] == list(program.SECTIONS)
    assert all(statuses(section) == ["not tested"] for section in report["sections"])
    assert (tmp_path / "no-card.md").read_text().startswith("# No card: not tested")
    assert all((program.HERE / f"test_{name}.py").exists() for name in program.SECTIONS)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Traceback\nOSError: libcudnn.so.9: cannot open", "Traceback\nOSError: libcudnn"),
        ("no answer within 120 s", "no answer within 120 s"),
        ("", "no answer"),
    ],
)
def test_a_driver_that_is_sick_is_not_called_no_card(monkeypatch: pytest.MonkeyPatch, said: str, why: str) -> None:
    monkeypatch.setattr(program, "_asked", lambda *_: said)
    assert program._card("cuda")["why"].startswith(f"the card could not be asked what it is: {why}")


def test_it_ends_in_one_line_where_the_page_cannot_be_written_or_the_user_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(program, "_card", lambda device: {"why": "no card"})
    assert program.guarded(["--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"make gpu: {tmp_path / 'file'}: File exists\n"

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_card", stopped)
    assert program.guarded(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("interrupted")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.card.REQUIRED", ("pytest", "no-such-package"))
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
    report = {"sections": [{"items": [{"status": one} for one in results]}], "rehearsal": rehearsal}
    assert program.verdict(report, "")[0] == code


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("Tesla T4", 65e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA T400 4GB", None),
    ],
)
def test_cards_are_known_by_name(name: str, flops: float | None) -> None:
    assert (datasheet(name) or [None])[0] == flops


def test_the_measured_trial_is_that_of_the_profile_and_a_smaller_card_gets_fewer_rows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    config, t4 = measured_trial(tmp_path, "cuda", "qwen0.5b"), load_config("t4")
    assert shape_of(config) == shape_of(t4)
    for section, names in {
        "train": ("batch_size", "response_length", "num_epochs", "num_mini_batches"),
        "runtime": ("micro_batch_size", "gradient_checkpointing"),
    }.items():
        assert all(getattr(getattr(config, section), n) == getattr(getattr(t4, section), n) for n in names)
    ours, theirs = predict(config), predict(t4)
    assert ours is not None
    assert theirs is not None
    assert ours.stage_gib("train") == pytest.approx(theirs.stage_gib("train"), rel=0.02)
    assert fitted(config, ours.total_gib + 0.1) == (config, [])
    smaller, notes = fitted(config, ours.total_gib - 0.5)
    assert smaller.runtime.micro_batch_size < config.runtime.micro_batch_size
    assert "fewer rows" in notes[0]


def test_seconds_are_those_of_the_updates_after_the_first() -> None:
    def ledger(times: float) -> dict[str, Any]:
        kinds = {"seconds": {"train": 4.0, "generate": 2.0}, "flops": {"train": 8e12}, "bytes": {"train": 1e9}}
        scaled = {kind: {name: times * value for name, value in one.items()} for kind, one in kinds.items()}
        return {"wall": 9.0 * times, "head": 0.5 * times, **scaled}

    rows = {row["phase"]: row for row in seconds_by_phase([ledger(3), ledger(4), ledger(5)], (4e12, 1e12))}
    keys = ("seconds (median)", "roofline of this card, s", "share of roofline", "n")
    assert [rows["train"][key] for key in keys] == [4.0, 2.0, 0.5, 2]
    assert rows["of train: head"]["seconds (median)"] == 0.5


@pytest.mark.slow
def test_the_measurements_run_on_a_cpu_and_land_on_the_page(tmp_path: Path) -> None:
    found = program.run("measure", 300, CPU, "tiny")
    (item,) = found["items"]
    assert item["status"] == "passed", item
    values = item["values"]
    assert {row["what"] for row in values["memory by stage"]} >= {"sft", "reward", "train", "evaluate"}
    parts = {row["what"] for row in values["memory of training by component"]}
    assert parts >= {"policy", "gradients", "optimiser", "reference", "reward"}
    seconds = {row["phase"]: row["seconds (median)"] for row in values["seconds by phase of an update"]}
    assert 0 < seconds["of train: head"] < seconds["train"]
    report = {"card": {"name": "A card"}, "verdict": "tested", "headline": "1 passed.", "commit": "abc", "seconds": 1.0}
    page = render(report | {"versions": {"torch": "2"}, "sections": [found]})
    assert "| train |" in page
    assert "rehearsal on a CPU" in page
    assert "None" not in page
