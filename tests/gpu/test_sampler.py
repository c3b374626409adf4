"""The sampler against a reference implementation, on a CPU in `make test` and on the card in `make gpu`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu.base import MEDIUM, QWEN
from gpu.hardware import DEVICE
from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.models.sampling import inverse_cdf, sample
from pipeline.models.seeding import stream, uniforms
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


def small() -> CausalLM:
    """A network whose responses end now and then."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {
        **MEDIUM,
        "vocab_size": 1024,
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
