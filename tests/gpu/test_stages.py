from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, choose, furthest, numbers, peak_gib, read, series, trial
from helpers import copy_upstream, smoke
from safetensors.torch import load_file
from tinytrial import FEW_BITS

from pipeline.models.loading import device_of
from pipeline.models.precision import CHOICE
from pipeline.run.progress import TrialOutcome
from pipeline.trial import execution

pytestmark = pytest.mark.gpu
NATS = 0.05
"""Per token: how far a short training in half precision may end from one in fp32."""
WAYS: dict[str, dict[str, Any]] = {
    "separate critic": {"critic__kind": "separate", "critic__init": "reward"},
    "lora": {"adapter__kind": "lora", "adapter__rank": 4},
    "recomputation": {"runtime__gradient_checkpointing": True},
    "4 bits beside a critic in 8": {"model__hidden_size": 64, "model__intermediate_size": 128, **FEW_BITS},
}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> TrialOutcome:
    """A trial in fp32 on the card, to compare with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, "fp32")
        return trial(tmp_path_factory.mktemp("fp32"))


def sound(outcome: TrialOutcome) -> None:
    assert (outcome.status, outcome.reason) == ("complete", None)
    numbers = [*outcome.summary.values(), *(value for row in series(outcome).values() for value in row.values())]
    assert all(math.isfinite(value) for value in numbers)
    assert 0 <= outcome.summary["eval/kl_per_token"] < 1
    weights = load_file(outcome.artifacts["train"].path / "policy" / "model.safetensors").values()
    assert {tensor.dtype for tensor in weights} == {torch.float32}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights)


def test_a_trial_in_fp32(single: TrialOutcome) -> None:
    sound(single)
    assert device_of("auto").type == device_of(DEVICE).type == DEVICE
    assert device_of("cpu").type == "cpu"


@pytest.mark.parametrize("precision", HALVES)
def test_a_trial_in_half_precision(
    single: TrialOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, record_property: Any
) -> None:
    choose(monkeypatch, precision)
    outcome = trial(tmp_path)
    sound(outcome)
    assert outcome.execution["precision"].startswith(f"{precision} autocast")
    assert execution(smoke(runtime__device=DEVICE))["precision"] == outcome.execution["precision"]
    nats = [read(one, "sft", "summary.json")["nats_per_token"] for one in (single, outcome)]
    record_property("sft, nats per token from fp32", f"{nats[1] - nats[0]:+.4f}")
    assert abs(nats[1] - nats[0]) < NATS
    assert single.artifacts["sft"].path.name != outcome.artifacts["sft"].path.name, "the precision is part of the key"
    assert all(peak_gib(outcome, stage) > 0 for stage in ("sft", "reward", "reference", "train", "evaluate"))


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_train_in_the_precision_of_the_card(tmp_path: Path, way: str) -> None:
    if "bits" in way and find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    sound(trial(tmp_path, sft__steps=40, evaluate__prompts=16, **WAYS[way]))


def test_recomputation_changes_no_result_in_fp32(
    single: TrialOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setenv(CHOICE, "fp32")
    copy_upstream(single.artifacts["reward"].path.parents[1], tmp_path / "store")
    again = trial(tmp_path, until="train", runtime__gradient_checkpointing=True)
    apart = furthest(*({1: series(done)[1]} for done in (single, again)))
    record_property("first step, largest difference of a metric", f"{apart:.2g}")
    assert apart < 1e-3


def test_two_processes_give_what_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} CUDA devices are visible, two are needed")
    monkeypatch.setenv(CHOICE, "fp32")
    one, two = (trial(tmp_path / str(n), until="train", runtime__processes=n) for n in (1, 2))
    record_property("largest difference of the metrics", f"{furthest(series(one), series(two)):.2g}")
    assert furthest(numbers(one, "train"), numbers(two, "train")) < 0.01
