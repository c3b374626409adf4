"""What the static sampler is predicted to take."""

from __future__ import annotations

import pytest

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.forecast.memory import memory_by_stage
from pipeline.forecast.policy_shape import shape_of
from pipeline.forecast.subject import Device, ForecastSubject, Trained

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
