from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.budget import PUBLISHED, Ledger, Shape, estimate, roofline, shape_of
from pipeline.config import ModelConfig, load_config
from pipeline.models.loading import scratch_model


def test_counted_parameters_are_those_of_the_model() -> None:
    cfg = ModelConfig(hidden_size=64, layers=3, heads=4, intermediate_size=160)
    shape = shape_of(cfg, 500)
    assert shape is not None
    model = scratch_model(cfg, 500, 0, 1, 64, seed=0)
    # Norms and biases are left out of the count; they do no matrix work.
    assert shape.parameters == pytest.approx(sum(parameter.numel() for parameter in model.parameters()), rel=0.02)
    assert PUBLISHED["Qwen/Qwen1.5-0.5B"].parameters == pytest.approx(464e6, rel=0.01)


def test_counted_flops_agree_with_torch() -> None:
    cfg = ModelConfig(hidden_size=64, layers=3, heads=4, intermediate_size=160)
    model, shape = scratch_model(cfg, 500, 0, 1, 64, seed=0), shape_of(cfg, 500)
    assert shape is not None
    model.set_attn_implementation("eager")
    rows, length = 4, 32
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(rows, length, dtype=torch.long))
    tokens = rows * length
    # Eager attention multiplies the whole square, also above the diagonal.
    assert shape.forward_flops(tokens, length, tokens) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_the_roofline_takes_the_slower_side() -> None:
    assert roofline("train", 65e12 * 0.35, 0.0) == pytest.approx(1.0)
    assert roofline("train", 0.0, 320e9 * 0.35) == pytest.approx(1.0)
    assert roofline("generate", 65e12, 640e9) == pytest.approx(4.0)


def test_the_t4_profile_is_predicted_to_fit_and_a_greedy_one_not() -> None:
    fits = estimate(load_config("t4"))
    assert fits is not None
    assert fits.fits
    greedy = estimate(load_config("t4", {"ppo.response_length": 256, "runtime.micro_batch_size": 64}))
    assert greedy is not None
    assert not greedy.fits
    assert greedy.total_gib > 14.6
    assert estimate(load_config("t4", {"model.base": "someone/unknown"})) is None


def test_a_ledger_adds_up() -> None:
    cfg = load_config("tiny").ppo
    ledger = Ledger(Shape(700, 96, 2, 256))
    for _ in range(3):
        ledger.count_update(cfg, 400, 1000, cfg.steps_per_update)
    with ledger.timed("train"):
        pass
    cost = ledger.cost()
    assert cost["generated_tokens"] == 3000
    assert cost["tflop"] > 0
    assert 0 < cost["t4_s"] < 60
    assert ledger.exceeded(cfg) is None
    assert ledger.exceeded(cfg.model_copy(update={"max_generated_tokens": 3000})) is not None
