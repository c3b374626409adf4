"""Gradient steps on the card: loss scaling, every controller in every precision, the checks before the first step, a
trial that is killed and goes on, and the language-modelling head.

On a CPU a resumed trial is equal bit for bit. A card adds up some sums in the order in which threads arrive; torch's
deterministic kernels are asked for here where it has any. Whether bits are equal is recorded. Demanded is that the same
records are there at the end, and that those up to the first update after the checkpoint agree: within 1 % in fp32, 5 %
in fp16, where a rounding may flip a token.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: cuBLAS is deterministic only with it

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, QWEN, choose, furthest, network
from tinytrial import CONTROLS, Killed, Killer, trainer

from pipeline.models.heads import head_backward, log_probs
from pipeline.models.loading import prepared
from pipeline.models.out_of_memory import Room
from pipeline.models.precision import DTYPES, Precision
from pipeline.models.seeding import stream
from pipeline.run.metrics import merged
from pipeline.training.supervised import Supervised

pytestmark = pytest.mark.gpu
APART = {"fp32": 0.01, "fp16": 0.05}
TOKENS, WIDTH = 64, 256
OFFSET = -70.0
"""Offset of the logits, as far from 0 as GPT-2's: rounded to bf16 they would be off by up to 0.25."""


@pytest.fixture(params=("fp32", *HALVES))
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    choose(monkeypatch, request.param)
    return str(request.param)


def test_a_gradient_that_overflows_fp16_costs_one_step_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "fp16")
    linear = torch.nn.Linear(4, 1, bias=False).to(DEVICE)
    steps, before = Supervised(linear, [], 0.0, Room("sft.batch_size", 2), False), linear.weight.detach().clone()

    def loss(value: float, factor: float) -> torch.Tensor:
        return linear(torch.full((2, 4), value, device=DEVICE)).float().sum() * factor

    steps.step(0.1, 2, lambda part: loss(60_000.0, 1e30))
    assert torch.equal(linear.weight, before)
    for _ in range(20):  # until the scale is one that fits
        steps.step(0.1, 2, lambda part: loss(1.0, 1.0))
    assert float((linear.weight - before).abs().max()) > 0.01
    assert bool(torch.isfinite(linear.weight).all())


@pytest.mark.parametrize("control", CONTROLS)
def test_every_control_trains(tmp_path: Path, control: str, precision: str) -> None:
    if control == "few bits" and find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    outcome = trainer(tmp_path, device=DEVICE, runtime__micro_batch_size=2, **CONTROLS[control]).run()
    assert (outcome.status, outcome.reason) == ("complete", None)
    rows = merged(tmp_path / "metrics.jsonl")
    assert all(math.isfinite(value) for row in rows.values() for value in row.values())


# --- kill and resume ---


def finished(folder: Path, knobs: dict[str, Any]) -> Any:
    one = trainer(folder, device=DEVICE, **knobs)
    outcome = one.run()
    weights = {name: tensor.cpu() for name, tensor in one.actor.state_dict().items()}
    return (outcome.status, outcome.steps, outcome.updates), merged(folder / "metrics.jsonl"), weights


@pytest.mark.parametrize("precision", APART, indirect=True)
@pytest.mark.parametrize("control", ["fixed", "adaptive", "guard", "target", "separate", "lora"])
def test_a_killed_trial_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str, precision: str, record_property: Any
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        end, wanted, weights = finished(tmp_path / "whole", CONTROLS[control])
        with pytest.raises(Killed):
            trainer(tmp_path / "cut", Killer(after=3), device=DEVICE, **CONTROLS[control]).run()
        end_again, found, again = finished(tmp_path / "cut", CONTROLS[control])
    finally:
        torch.use_deterministic_algorithms(False)
    assert end_again == end
    assert found.keys() == wanted.keys()
    # Killed after its third update, with a checkpoint after the second: step 8 is the first record of the third.
    resumed = [step for step in wanted if step <= 12]
    assert furthest({n: wanted[n] for n in resumed}, {n: found[n] for n in resumed}) < APART[precision]
    equal = found == wanted and all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    record_property("equal bit for bit", "yes" if equal else f"no, by at most {furthest(wanted, found):.2g}")


# --- the language-modelling head ---


@pytest.mark.parametrize("precision", HALVES, indirect=True)
def test_logits_are_not_rounded_and_gradients_pass_through_the_head(precision: str, record_property: Any) -> None:
    """With the vocabulary of Qwen1.5-0.5B, against float64 on operands that are rounded to the precision."""
    heads = {"num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    lm = prepared(network(hidden_size=WIDTH, **heads))
    hidden = torch.randn(TOKENS, WIDTH, generator=stream("gpu head")).to(DEVICE)
    weight = lm.get_output_embeddings().weight
    with torch.no_grad():
        weight[:, 0], hidden[:, 0] = 1.0, OFFSET
    labels = torch.randint(0, QWEN["vocab_size"], (TOKENS,), generator=stream("gpu labels")).to(DEVICE)
    with Precision.of(hidden.device).autocast():
        with torch.no_grad():
            logits = log_probs(lm, hidden, 1.0)
        one = torch.ones((), device=DEVICE)
        found = head_backward(lm, hidden, labels, 1.0, lambda part, logprobs, entropy: -logprobs.sum(), one)

    rounded, half = (tensor.detach().to(DTYPES[precision]).double() for tensor in (hidden, weight))
    exact = torch.log_softmax(rounded @ half.T, dim=-1)
    error = float((logits.double() - exact).abs().max())
    record_property("largest error, nats", f"{error:.2g}")
    assert logits.dtype == torch.float32
    assert error < 2e-3
    torch.testing.assert_close(found.logprobs.double(), exact.gather(1, labels[:, None]).squeeze(1), atol=2e-3, rtol=0)
    slope = exact.exp()
    slope[torch.arange(TOKENS, device=DEVICE), labels] -= 1
    for gradient, wanted in ((found.gradient, slope @ half), (weight.grad, slope.T @ rounded)):
        assert float((gradient.double() - wanted).norm() / wanted.norm()) < 0.02
