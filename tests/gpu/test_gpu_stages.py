"""Every stage of a trial on the card, in every precision that it has."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, choose, config, trial
from safetensors.torch import load_file

from pipeline.models.precision import CHOICE
from pipeline.run.metrics_log import merged
from pipeline.run.outcome import TrialOutcome
from pipeline.trial import execution

pytestmark = pytest.mark.gpu
STAGES = ("sft", "reward", "reference", "train", "evaluate")
NATS = 0.05
"""Per token: how far a short training in half precision may end from one in fp32."""


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrialOutcome]:
    """A trial in fp32 on the card, to compare with; its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, "fp32")
        root = tmp_path_factory.mktemp("fp32")
        return root, trial(root)


def sound(outcome: TrialOutcome) -> None:
    """It ran to its end; its numbers are finite and its weights fp32."""
    assert (outcome.status, outcome.reason) == ("complete", None)
    assert all(math.isfinite(value) for value in outcome.summary.values())
    assert 0 <= outcome.summary["eval/kl_per_token"] < 1
    rows = merged(outcome.artifacts["train"].path / "metrics.jsonl")
    assert all(math.isfinite(value) for row in rows.values() for value in row.values())
    weights = load_file(outcome.artifacts["train"].path / "policy" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())


def test_a_trial_in_fp32(single: tuple[Path, TrialOutcome]) -> None:
    sound(single[1])


@pytest.mark.parametrize("precision", HALVES)
def test_a_trial_in_half_precision(
    single: tuple[Path, TrialOutcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    record_property: pytest.RecordProperty,
) -> None:
    choose(monkeypatch, precision)
    outcome = trial(tmp_path)
    sound(outcome)
    assert outcome.execution["precision"].startswith(f"{precision} autocast")
    assert execution(config())["precision"] == outcome.execution["precision"]
    nats = [_summary(one)["nats_per_token"] for one in (single[1], outcome)]
    record_property("sft, nats per token from fp32", f"{nats[1] - nats[0]:+.4f}")
    assert abs(nats[1] - nats[0]) < NATS
    assert (
        single[1].artifacts["sft"].path.name != outcome.artifacts["sft"].path.name
    )  # the precision is part of the key
    for stage in STAGES:
        cost = json.loads((outcome.artifacts[stage].path / "log" / "cost.json").read_text("utf-8"))
        assert cost["peak_memory_gib"] > 0, stage


def _summary(outcome: TrialOutcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.artifacts["sft"].path / "summary.json").read_text("utf-8"))
    return found


WAYS: dict[str, dict[str, Any]] = {
    "separate critic": {"critic__kind": "separate", "critic__init": "reward"},
    "lora": {"adapter__kind": "lora", "adapter__rank": 4},
    "frozen layers": {"adapter__frozen_layers": 1, "model__layers": 2},
    "recomputation": {"runtime__gradient_checkpointing": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_train_in_the_precision_of_the_card(tmp_path: Path, way: str) -> None:
    sound(trial(tmp_path, sft__steps=40, evaluate__prompts=16, **WAYS[way]))


def test_recomputation_changes_no_result_in_fp32(
    single: tuple[Path, TrialOutcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: pytest.RecordProperty,
) -> None:
    monkeypatch.setenv(CHOICE, "fp32")
    for stage in ("prompts", "sft", "reward"):
        shutil.copytree(single[0] / "store" / stage, tmp_path / "store" / stage)
    again = trial(tmp_path, until="train", runtime__gradient_checkpointing=True)
    one, other = (merged(done.artifacts["train"].path / "metrics.jsonl")[1] for done in (single[1], again))
    apart = max(abs(one[key] - other[key]) for key in one)
    record_property("first step, largest difference of a metric", f"{apart:.2g}")
    assert apart < 1e-3


def test_the_card_computes_where_it_is_told_to() -> None:
    from pipeline.models.loading import device_of

    assert device_of("auto").type == device_of(DEVICE).type == DEVICE
    assert device_of("cpu").type == "cpu"
