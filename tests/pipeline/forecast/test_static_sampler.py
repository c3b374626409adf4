"""What the static sampler is predicted to take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tinynets import network

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.forecast.advice import predict
from pipeline.forecast.memory import memory_by_stage
from pipeline.forecast.policy_shape import measured, shape_of
from pipeline.forecast.sampling import sampling_statically
from pipeline.forecast.subject import Device, ForecastSubject, Trained
from pipeline.models.fp32_heads import fp32_logits
from pipeline.models.precision import Precision
from pipeline.models.seeding import uniforms
from pipeline.models.static_sampler import StaticSampler
from pipeline.resources.out_of_memory import Room

RELOADED = {"runtime.micro_batch_size": 1, "runtime.gradient_checkpointing": True, "adapter.kind": "lora"}
"""So little for gradient steps that sampling needs most."""
MANY = {"runtime.rollout_batch_size": 256, "train.response_length": 104}


def config(**changes: object) -> TrialConfig:
    return load_config("t4", {key.replace("__", "."): value for key, value in changes.items()})


def train(cfg: TrialConfig, device: Device = "cuda") -> dict[str, float]:
    shape = shape_of(cfg)
    assert shape is not None
    subject = ForecastSubject(cfg, shape, device)
    return memory_by_stage(subject, Trained.of(shape, cfg))["train"]


def test_training_is_charged_nothing_since_the_sampler_gives_way() -> None:
    assert train(config()) == train(config(runtime__sampler="eager"))


def test_sampling_is_charged_with_copy_cache_and_logits() -> None:
    cfg = load_config("t4", {**RELOADED, **MANY})
    shape, found = shape_of(cfg), train(cfg)
    assert shape is not None
    assert found["half-precision copies"] == 2.0 * (shape.maps + shape.vocab * shape.hidden)
    assert found["logits"] == 256 * shape.vocab * 12.0
    cache = 2.0 * 256 * 128 * shape.kv  # prompts of 24 tokens and 104 of the response
    assert found["cache"] == cache + 3.0 * 256 * 24 * shape.kv
    grouped = train(load_config("t4", {**RELOADED, **MANY, "algorithm": "grpo"}))
    assert cache < grouped["cache"] < found["cache"]  # each prompt is read once


def test_what_is_sampled_later_keeps_the_sampler_beside_the_measuring() -> None:
    few = {**RELOADED, "runtime.rollout_batch_size": 256, "algorithm": "remax"}
    apart = sum(train(load_config("t4", {**few, "runtime.sampler": "eager"})).values())
    beside = sum(train(load_config("t4", few)).values())
    copy = sum(train(load_config("t4", few))[name] for name in ("half-precision copies", "cache", "logits"))
    assert beside > apart
    assert copy > 0


@pytest.mark.parametrize(("device", "sampler", "static"), [
    ("cpu", "auto", False), ("cuda", "auto", True), ("cuda", "eager", False), ("cpu", "static", True),
])  # fmt: skip
def test_which_sampler_a_trial_would_have(device: Device, sampler: str, static: bool) -> None:
    cfg = load_config("tiny", {"runtime.sampler": sampler})
    shape = shape_of(cfg)
    assert shape is not None
    assert ForecastSubject(cfg, shape, device).static_sampler == static


def test_the_work_of_its_steps_is_what_is_counted() -> None:
    """Full-length responses to prompts of one length, against what the sampler's own meter says."""
    lm: Any = fp32_logits(network("gpt2", vocab_size=64))
    spent = [0.0, 0.0]

    def tally(flops: float, bytes_: float) -> None:
        spent[:] = spent[0] + flops, spent[1] + bytes_

    precision = Precision(torch.device("cpu"), "no")
    sampler = StaticSampler(
        lm, 1.0, Room("rows", 8), eos_id=-1, pad_id=0, precision=precision, tally=tally, warn=pytest.fail
    )
    sampler.sample(torch.arange(2, 42).view(8, 5), torch.ones(8, 5, dtype=torch.bool), uniforms(8, 40, "forecast"))
    prompts = {"data.prompt_unit": "tokens", "data.prompt_length": [5, 5]}
    sizes = {"train.batch_size": 8, "train.num_mini_batches": 1, "train.response_length": 40}
    shape = measured(lm.config.to_json_string())
    assert shape is not None
    flops, bytes_ = sampling_statically(
        ForecastSubject(load_config("smoke", {**prompts, **sizes}), shape, "cuda"), rows=8
    )
    assert flops == pytest.approx(spent[0], rel=0.01)
    assert bytes_ == pytest.approx(spent[1], rel=0.01)


def test_its_hours_are_shown_beside_those_that_a_cap_is_held_against() -> None:
    plain, eager, lora = (
        predict(config(**changes)) for changes in ({}, {"runtime__sampler": "eager"}, {"adapter__kind": "lora"})
    )
    assert plain is not None
    assert eager is not None
    assert lora is not None
    assert plain.hours == eager.hours
    assert eager.static_hours is None
    assert plain.static_hours == lora.static_hours  # a merged adapter costs nothing
    assert 0.4 * plain.hours["generate"] < plain.static_hours < 0.7 * plain.hours["generate"]
