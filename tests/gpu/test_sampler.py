"""The samplers against a reference implementation and each other, on a CPU in `make test` and on the card in `make
gpu`."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from gpu.base import MEDIUM, QWEN
from gpu.hardware import DEVICE, needs_allocator
from torch import Tensor

from pipeline.models.fp32_heads import fp32_logits
from pipeline.models.loading import CausalLM
from pipeline.models.policy import Episodes
from pipeline.models.precision import NAMES, Precision
from pipeline.models.sampler import EagerSampler, Sampler
from pipeline.models.sampling import inverse_cdf, sample
from pipeline.models.seeding import stream, uniforms
from pipeline.models.static_sampler import StaticSampler
from pipeline.resources.out_of_memory import Room

ROWS = 24
EDGE = 1e-5
devices = pytest.mark.parametrize(
    "device", [pytest.param("cpu"), pytest.param(DEVICE, marks=pytest.mark.gpu, id="card")]
)


def reference(logits: np.ndarray, noise: np.ndarray, temperature: float) -> np.ndarray:
    """Inverse transform of each row in float64: the first token whose cumulative probability is above the noise."""
    scaled = logits.astype(np.float64) / temperature
    mass = np.exp(scaled - scaled.max(1, keepdims=True))
    cumulative = np.cumsum(mass / mass.sum(1, keepdims=True), axis=1)
    return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(1)


@devices
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocab", [700, QWEN["vocab_size"]])
def test_a_token_is_that_of_the_inverse_transform_in_float64(device: str, vocab: int, temperature: float) -> None:
    generator = stream("gpu sampler", vocab)
    logits = torch.randn(ROWS, vocab, generator=generator) * 3
    noise = uniforms(ROWS, 1, "gpu sampler").squeeze(1)
    found = inverse_cdf(logits.to(device), noise.to(device), temperature).cpu().numpy()
    mass = np.exp(logits.double().numpy() / temperature)
    mass /= mass.sum(1, keepdims=True)
    above = mass.cumsum(1)[np.arange(ROWS), found]
    below = above - mass[np.arange(ROWS), found]
    # Softmax is in fp32: where the noise falls on the edge of two tokens, either is right.
    u = noise.numpy()
    assert np.all((below - EDGE <= u) & (u <= above + EDGE))
    assert np.mean(found == reference(logits.numpy(), u, temperature)) > 0.8


@devices
def test_tokens_with_a_cache_are_those_of_a_whole_forward_for_each(
    device: str, record_property: pytest.RecordProperty
) -> None:
    network = small().to(device)
    ids = torch.randint(2, 1024, (ROWS, 6), generator=stream("gpu prompts"))
    mask = torch.arange(6) >= torch.arange(ROWS)[:, None] % 5
    noise = uniforms(ROWS, 12, "gpu responses")
    made = sample(
        network, ids.to(device), mask.to(device), noise, eos_id=1, pad_id=0, temperature=1.0, room=Room("rows", 10)
    )
    found, lengths = made.responses.cpu(), made.lengths.cpu()
    same = [
        found[row, : lengths[row]].tolist() == one_by_one(network, ids[row][mask[row]], noise[row])
        for row in range(ROWS)
    ]
    record_property("responses alike", f"{sum(same)} of {ROWS}")
    # Kernels of other shapes round otherwise, and a response goes its own way from the first token that flips.
    assert sum(same) >= ROWS - 1


# --- the static sampler ------------------------------------------------------------------------------------

IDS = {"eos_id": 1, "pad_id": 0}
TOKENS = 48
ALIKE = {"fp32": 0.95, "bf16": 0.6, "fp16": 0.8}
"""Share of responses that must be equal: each of them is drawn by up to 48 numbers, and rounding decides a few."""


def samplers(device: str, precision: str, vocab: int = 1024) -> tuple[EagerSampler, StaticSampler, StaticSampler]:
    """The eager one, and the static one with and without capture."""
    network = fp32_logits(small(vocab)).to(device)
    how = Precision(torch.device(device), NAMES[precision])
    eager = EagerSampler(network, 1.0, Room("rows", ROWS), **IDS)
    captured, plain = (
        StaticSampler(
            network, 1.0, Room("rows", ROWS), **IDS, precision=how, tally=lambda flops, bytes_: None, warn=pytest.fail
        )
        for _ in range(2)
    )
    plain.captures = False
    return eager, captured, plain


def prompts_and_noise(device: str) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.randint(2, 1024, (ROWS // 2, 6), generator=stream("gpu prompts")).repeat_interleave(2, 0)
    mask = (torch.arange(6) >= torch.arange(ROWS // 2)[:, None] % 5).repeat_interleave(2, 0)
    return ids.to(device), mask.to(device), uniforms(ROWS, TOKENS, "gpu static")


def timed(sampler: Sampler, device: str, precision: str) -> tuple[Episodes, float]:
    """Episodes, and milliseconds for a token of all rows; the second call of the sampler."""
    with Precision(torch.device(device), NAMES[precision]).autocast():
        sampler.sample(*prompts_and_noise(device))
        began = time.perf_counter()
        made = sampler.sample(*prompts_and_noise(device))
        longest = int(made.lengths.max())  # waits for the device
    return made, (time.perf_counter() - began) / longest * 1000


@devices
@pytest.mark.parametrize("vocab", [1024, 8192])  # of a large one a block is drawn first
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_captured_steps_draw_what_the_eager_sampler_draws(
    device: str, precision: str, vocab: int, record_property: pytest.RecordProperty
) -> None:
    if device == "cpu" and precision != "fp32":
        pytest.skip("half precision is tested on a card")
    if precision == "bf16" and torch.cuda.get_device_capability(0) < (8, 0):
        pytest.skip("bf16 needs compute capability 8.0")
    eager, captured, plain = samplers(device, precision, vocab)
    (wanted, eager_ms), (found, captured_ms), (uncaptured, plain_ms) = (
        timed(one, device, precision) for one in (eager, captured, plain)
    )
    alike = float((found.query_responses == wanted.query_responses).all(1).float().mean())
    record_property("responses alike", f"{alike:.0%} of {ROWS}")
    record_property("ms a token", f"eager {eager_ms:.2f}, static {plain_ms:.2f}, captured {captured_ms:.2f}")
    record_property("graphs", str(len(captured._graphs)))
    # The same kernels on the same shapes: a replay differs from a step that is run in nothing but its launch.
    assert torch.equal(found.query_responses, uncaptured.query_responses)
    assert alike >= ALIKE[precision]
    assert bool(captured._graphs) == (device == "cuda")


@pytest.mark.gpu
def test_weights_that_have_changed_are_sampled_by_the_old_graphs() -> None:
    needs_allocator()
    eager, captured, _ = samplers(DEVICE, "fp32")
    before, _ = timed(captured, DEVICE, "fp32")
    graphs = dict(captured._graphs)
    with torch.no_grad():
        for parameter in captured.lm.parameters():
            parameter.mul_(1.3)
    captured.refresh()
    wanted, found = eager.sample(*prompts_and_noise(DEVICE)), captured.sample(*prompts_and_noise(DEVICE))
    assert float((found.query_responses == wanted.query_responses).all(1).float().mean()) >= ALIKE["fp32"]
    assert not torch.equal(found.query_responses, before.query_responses)
    assert all(captured._graphs[bucket] is graph for bucket, graph in graphs.items())


@pytest.mark.gpu
def test_what_was_held_is_free_again(record_property: pytest.RecordProperty) -> None:
    needs_allocator()
    _, captured, _ = samplers(DEVICE, "fp32")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    captured.sample(*prompts_and_noise(DEVICE))
    held, counted = torch.cuda.memory_reserved() - before, captured.nbytes
    captured.release()
    record_property("held", f"{held / 2**20:.1f} MiB, of which copy and cache {counted / 2**20:.1f}")
    # cuBLAS keeps a workspace.
    assert torch.cuda.memory_reserved() - before < max(held / 2, 2**26)


@pytest.mark.gpu
def test_after_a_capture_that_fails_the_card_goes_on() -> None:
    """A step that waits for the card cannot be captured."""
    needs_allocator()
    eager, captured, _ = samplers(DEVICE, "fp32")
    warnings, step = list[str](), captured._step
    captured._warn = warnings.append
    captured._step = lambda bucket: (step(bucket), torch.cuda.synchronize())[0]  # type: ignore[method-assign]
    wanted, found = eager.sample(*prompts_and_noise(DEVICE)), captured.sample(*prompts_and_noise(DEVICE))
    assert float((found.query_responses == wanted.query_responses).all(1).float().mean()) >= ALIKE["fp32"]
    assert len(warnings) == 1
    assert not captured.captures
    before = torch.cuda.memory_reserved()
    captured.release()  # raises where torch still waits for the end of a capture
    assert torch.cuda.memory_reserved() < before


@pytest.mark.gpu
def test_a_step_waits_for_nothing() -> None:
    needs_allocator()
    _, captured, plain = samplers(DEVICE, "fp32")
    for one in (captured, plain):
        one.sample(*prompts_and_noise(DEVICE))
        bucket = (ROWS, 16, 1.0)
        with torch.inference_mode(), one._autocast():
            assert one._slots is not None
            one._slots.step.zero_()
            one._slots.column.fill_(6)
            torch.cuda.set_sync_debug_mode("error")
            try:
                one._advance(bucket)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def small(vocab: int = 1024) -> CausalLM:
    """A network whose responses end now and then."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {
        **MEDIUM,
        "vocab_size": vocab,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
    }
    network = Qwen2ForCausalLM(Qwen2Config(**{**sizes, "num_key_value_heads": 4, "max_position_embeddings": 64}))
    with torch.no_grad():
        network.get_input_embeddings().weight[1] += network.get_input_embeddings().weight[2:].mean(0) * 3
    return network.eval()


@torch.no_grad()
def one_by_one(network: CausalLM, prompt: Tensor, noise: Tensor) -> list[int]:
    """One response without cache, padding or batch, each token by the reference above."""
    tokens = prompt.tolist()
    for u in noise:
        logits = network(torch.tensor([tokens], device=network.device)).logits[:, -1].float().cpu().numpy()
        tokens.append(int(reference(logits, np.array([float(u)]), 1.0)[0]))
        if tokens[-1] == 1:
            break
    return tokens[len(prompt) :]
