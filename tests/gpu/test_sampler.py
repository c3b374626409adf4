from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from gpu.hardware import DEVICE, QWEN, choose, needs_allocator, network

from pipeline.models.heads import fp32_logits
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
from pipeline.models.precision import Precision
from pipeline.models.sampling import EagerSampler, choose_sampler, inverse_cdf
from pipeline.models.seeding import stream, uniforms

pytestmark = pytest.mark.gpu
ROWS, TOKENS = 24, 48
EDGE = 1e-5
ALIKE = {"fp32": 0.95, "bf16": 0.6, "fp16": 0.8}
"""Share of responses that must be equal: each of them is drawn by up to 48 numbers, and rounding decides a few."""


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocab", [700, QWEN["vocab_size"]])
def test_a_token_is_that_of_the_inverse_transform_in_float64(vocab: int, temperature: float) -> None:
    logits = torch.randn(ROWS, vocab, generator=stream("gpu sampler", vocab)) * 3
    noise = uniforms(ROWS, 1, "gpu sampler").squeeze(1)
    found = inverse_cdf(logits.to(DEVICE), noise.to(DEVICE), temperature).cpu().numpy()
    mass = np.exp(logits.double().numpy() / temperature)
    mass /= mass.sum(1, keepdims=True)
    above, u = mass.cumsum(1)[np.arange(ROWS), found], noise.numpy()
    below = above - mass[np.arange(ROWS), found]
    # Softmax is in fp32: where the noise falls on the edge of two tokens, either is right.
    assert np.all((below - EDGE <= u) & (u <= above + EDGE))


def small() -> CausalLM:
    """A network whose responses end now and then."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    made = network(hidden_size=64, num_hidden_layers=2, intermediate_size=128, vocab_size=1024, **heads)
    weight = made.get_input_embeddings().weight
    with torch.no_grad():
        weight[1] += weight[2:].mean(0) * 3
    return made


# --- the static sampler ---


def samplers(precision: str) -> tuple[EagerSampler, EagerSampler]:
    """The eager one, and the one that a trial has on the device where it selects the static sampler."""
    eager = EagerSampler(fp32_logits(small()), 1.0, Room("rows", ROWS), eos_id=1, pad_id=0)
    return eager, choose_sampler("static", eager, Precision(torch.device(DEVICE), precision), pytest.fail)


def sampled(sampler: EagerSampler) -> Episodes:
    """Two responses to each prompt; some prompts are padded on the left."""
    ids = torch.randint(2, 1024, (ROWS // 2, 6), generator=stream("gpu prompts"))
    mask = torch.arange(6) >= torch.arange(ROWS // 2)[:, None] % 5
    ids, mask = (one.repeat_interleave(2, 0).to(DEVICE) for one in (ids, mask))
    return sampler.sample(ids, mask, uniforms(ROWS, TOKENS, "gpu static"))


def alike(one: Episodes, other: Episodes) -> float:
    return float((one.query_responses == other.query_responses).all(1).float().mean())


@pytest.mark.parametrize("precision", ALIKE)
def test_compiled_steps_draw_what_the_eager_sampler_draws(
    precision: str, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    choose(monkeypatch, precision)
    made, ms = [], []
    for sampler in samplers(precision):
        with Precision(torch.device(DEVICE), precision).autocast():
            sampled(sampler)  # the first call compiles
            began = time.perf_counter()
            made.append(sampled(sampler))
            longest = int(made[-1].lengths.max())  # waits for the device
        ms.append(f"{(time.perf_counter() - began) / longest * 1000:.2f}")
    record_property("responses alike", f"{alike(*made):.0%} of {ROWS}")
    record_property("ms a token, eager and static", ", ".join(ms))
    assert alike(*made) >= ALIKE[precision]


def test_weights_that_have_changed_are_sampled_without_another_compilation_and_nothing_is_held() -> None:
    from torch._dynamo.utils import counters

    needs_allocator()
    eager, static = samplers("fp32")
    before = sampled(static)
    graphs = counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for parameter in eager.lm.parameters():
            parameter.mul_(1.3)
    held, found = torch.cuda.memory_allocated(), sampled(static)
    kept = sum(tensor.nbytes for tensor in vars(found).values())
    assert torch.cuda.memory_allocated() - held - kept < 2**20
    assert alike(found, sampled(eager)) >= ALIKE["fp32"]
    assert not torch.equal(found.query_responses, before.query_responses)
    assert counters["stats"]["unique_graphs"] == graphs > 0
