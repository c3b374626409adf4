"""Whole trials whose policy is in NF4 and whose critic is in int8."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from recorded_trials import artifacts, recorded
from safetensors.torch import load_file
from tinytrial import FEW_BITS

from pipeline.models.loading import load_snapshot
from pipeline.models.quantization import load_rounded
from pipeline.run.layout import Layout, TrialRecord
from pipeline.trial import plan_trial, run_trial

STILL: dict[str, Any] = {**FEW_BITS, "critic__init": "reward", "optimiser__lr": 0.0, "train__steps": 8}
"""The policy stays at its reference; the critic learns."""
STAGES = ("prompts", "sft", "reward", "reference", "train", "evaluate")


@pytest.fixture(scope="module")
def record(smoke_layout: Layout) -> TrialRecord:
    return recorded(smoke_layout, study="few", critic__lr=1e-3, **STILL)


def test_a_policy_in_nf4_that_has_not_moved_is_its_reference_in_training_and_in_evaluation(
    smoke_layout: Layout, record: TrialRecord
) -> None:
    found = artifacts(smoke_layout, record, STAGES)
    series = pd.read_parquet(found["train"].path / "metrics.parquet")["objective/kl_exact_per_token"].dropna()
    assert series.abs().max() < 1e-9
    assert abs(record.summary["eval/kl_per_token"]) < 1e-6
    on_texts = record.summary["eval/perplexity_texts"]
    assert on_texts == record.summary["eval/perplexity_texts_reference"] != found["sft"].meta["perplexity"]
    sft, cpu = found["sft"].path / "model", torch.device("cpu")
    policy, rounded, plain = (
        load(path, *rest).state_dict()
        for load, path, rest in (
            (load_snapshot, found["train"].path / "policy", (cpu,)),
            (load_rounded, sft, ("4bit", cpu, "")),
            (load_snapshot, sft, (cpu,)),
        )
    )
    assert all(torch.equal(policy[name], tensor) for name, tensor in rounded.items())
    assert any(not torch.equal(policy[name], tensor) for name, tensor in plain.items())


def test_an_untrained_policy_in_nf4_is_its_reference_too(smoke_layout: Layout) -> None:
    four = {"adapter__kind": "lora", "adapter__quantize": "4bit"}
    for answers, bound in ((1, 0.0), (4, math.log(4) - 3 / 4)):
        outcome = run_trial(smoke(algorithm="best_of_n", evaluate__best_of=answers, **four), smoke_layout, Recorder())
        assert outcome.summary["eval/kl_per_sequence"] == pytest.approx(bound, abs=1e-6)
        assert "state_gib" not in outcome.cost, "nothing is trained, so no memory of training is known"


def test_value_pretraining_fits_an_adapter_that_trials_of_all_seeds_begin_with(smoke_layout: Layout) -> None:
    knobs = {**STILL, "critic__pretraining_steps": 8, "values__samples": 1, "critic__vf_coef": 0.0}
    outcome = run_trial(smoke(**knobs), smoke_layout, Recorder(), until="train")
    fitted = load_file(outcome.artifacts["critic"].path / "critic.safetensors")
    assert any(".lora_B." in name and bool(tensor.any()) for name, tensor in fitted.items())
    kept = load_file(outcome.artifacts["train"].path / "critic.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in fitted.items())
    plan = plan_trial(smoke(**knobs, train__seed=1), smoke_layout)
    assert next(planned for planned in plan if planned.stage == "critic").cached
