"""Sampling against the plainest thing that could be done instead: one row at a time, no cache, no padding, float64."""

from __future__ import annotations

from typing import Any

import pytest
import tinytrial
import torch
from tinynets import network
from torch import Tensor

from pipeline.models.anatomy import trunk
from pipeline.models.loading import prepared
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
from pipeline.models.sampling import EagerSampler, inverse_cdf
from pipeline.models.seeding import uniforms

VOCAB, PAD, EOS = 23, 0, 1
NETWORKS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gpt2": {},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"sliding_window": 5},
}
"""Rotary and absolute positions, fewer key-value heads than heads, a window narrower than the episodes."""


@pytest.fixture(scope="module", params=NETWORKS)
def model(request: pytest.FixtureRequest) -> Any:
    model = prepared(network(request.param, vocab_size=VOCAB, **NETWORKS[request.param]))
    for parameter in model.parameters():  # the fresh network is near uniform; make it opinionated
        parameter.data.mul_(2.0)
    return model


ROWS, STEPS = 24, 20


def prompts() -> tuple[Tensor, Tensor]:
    """Left-padded, of 1 to 6 tokens, with junk for padding."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.arange(ROWS) % 6 + 1
    return torch.randint(2, VOCAB, (ROWS, 6), generator=generator), torch.arange(6) >= (6 - lengths)[:, None]


def sampled(
    model: Any, queries: Tensor, mask: Tensor, noise: Tensor, temperature: float = 1.0, batch: int = ROWS
) -> Episodes:
    return EagerSampler(model, temperature, Room("rows", batch), EOS, PAD).sample(queries, mask, noise)


def draw(model: Any, noise: Tensor, temperature: float = 1.0, batch: int = ROWS) -> Episodes:
    return sampled(model, *prompts(), noise, temperature, batch)


def answers(episodes: Episodes) -> list[list[int]]:
    return [row[:n] for row, n in zip(episodes.responses.tolist(), episodes.lengths.tolist(), strict=True)]


@torch.no_grad()
def alone(model: Any, query: list[int], noise: list[float], temperature: float) -> list[int]:
    """One row, by the whole network on the whole text for every token."""
    response: list[int] = []
    for number in noise:
        logits = model(torch.tensor([query + response]), use_cache=False).logits[0, -1].double() / temperature
        cumulative = torch.softmax(logits, dim=-1).cumsum(0)
        response.append(int((cumulative <= number * cumulative[-1]).sum()))
        if response[-1] == EOS:
            break
    return response


def all_alone(model: Any, noise: Tensor, temperature: float = 1.0) -> list[list[int]]:
    queries, mask = prompts()
    rows = [query[kept].tolist() for query, kept in zip(queries, mask, strict=True)]
    return [alone(model, query, numbers, temperature) for query, numbers in zip(rows, noise.tolist(), strict=True)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_response_is_that_of_its_row_alone(model: Any, temperature: float) -> None:
    noise = uniforms(ROWS, STEPS, "alone")
    episodes = draw(model, noise, temperature)
    assert answers(episodes) == all_alone(model, noise, temperature)
    assert bool((episodes.responses[~episodes.response_mask] == PAD).all())
    assert torch.equal(episodes.query_responses, draw(model, noise, temperature, batch=5).query_responses)
    lengths = set(episodes.lengths.tolist())
    assert len(lengths) > 4  # rows end at many moments, so rows were dropped between others that went on
    assert STEPS in lengths


def test_equal_prompts_that_stand_together_are_read_once(model: Any) -> None:
    """And each response is what it would be if its prompt stood alone."""
    queries, mask = prompts()
    order = torch.tensor([0, 0, 0, 1, 2, 2, 0])
    queries, mask, noise = queries[order], mask[order], uniforms(7, STEPS, "together")
    read: list[int] = []
    handle = trunk(model).register_forward_hook(
        lambda module, inputs, kwargs, output: read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    together = sampled(model, queries, mask, noise)
    handle.remove()
    assert read[:2] == [4, 7]
    apart = [sampled(model, queries[i : i + 1], mask[i : i + 1], noise[i : i + 1]) for i in range(7)]
    assert answers(together) == [answers(one)[0] for one in apart]


def test_pad_may_equal_eos(model: Any) -> None:
    """Masks come from lengths, so a pad id that is EOS (as in GPT-2) does not shorten or lengthen anything."""
    one, noise = draw(model, uniforms(ROWS, STEPS, "alone")), uniforms(ROWS, STEPS, "alone")
    other = EagerSampler(model, 1.0, Room("rows", ROWS), EOS, EOS).sample(*prompts(), noise)
    assert torch.equal(one.response_mask, other.response_mask)
    assert one.labels.tolist() == other.labels.tolist()


def test_at_temperature_0_the_likeliest_token_is_taken_whatever_the_noise(model: Any) -> None:
    queries, mask = prompts()
    found = answers(draw(model, uniforms(ROWS, STEPS, "greedy"), 0.0))
    assert found == answers(draw(model, uniforms(ROWS, STEPS, "other noise"), 0.0))
    for query, kept, response in zip(queries, mask, found, strict=True):
        text = query[kept].tolist()
        for token in response:
            with torch.no_grad():
                assert token == int(model(torch.tensor([text])).logits[0, -1].argmax())
            text.append(token)


# --- the draw ----------------------------------------------------------------------------------------------


def exact(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    cumulative = torch.softmax(logits.double() / temperature, dim=-1).cumsum(-1)
    return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(-1)


@pytest.mark.parametrize("vocab", [1, 700, 32_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_draw_is_the_inverse_of_the_cumulative_distribution(vocab: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(64, vocab, generator=generator) * 4
    noise = torch.rand(64, generator=generator, dtype=torch.float64)
    assert torch.equal(inverse_cdf(logits, noise, temperature), exact(logits, noise, temperature))


def test_the_tail_of_a_large_vocabulary_is_drawn() -> None:
    """Half the mass on one token, most of the rest on 150,000, and 1e-10 on each of the last 1,000."""
    p = torch.full((151_001,), 0.5 / 150_000, dtype=torch.float64)
    p[0], p[-1000:] = 0.5, 1e-10
    logits = p.log().float().unsqueeze(0)
    noise = 1 - (torch.arange(1000, dtype=torch.float64) + 0.5) * 1e-10 / p.sum()
    drawn = [inverse_cdf(logits.expand(len(part), -1), part) for part in noise.split(50)]
    assert torch.cat(drawn).tolist() == list(range(151_000, 150_000, -1))


@pytest.mark.parametrize("vocab", [700, 3000])
def test_the_ends_of_the_noise_are_inside_the_vocabulary(vocab: int) -> None:
    """And never on a token of mass 0."""
    logits = torch.randn(64, vocab, generator=torch.Generator().manual_seed(0))
    logits[:, :5] = logits[:, -300:] = -torch.inf
    ends = torch.tensor([[0.0], [1 - 2**-53]], dtype=torch.float64).expand(2, 64)
    assert inverse_cdf(logits, ends[0]).tolist() == [5] * 64
    assert inverse_cdf(logits, ends[1]).tolist() == [vocab - 301] * 64


def test_eos_in_the_prompt_ends_no_response() -> None:
    """Templates of chat models put it there; some prompts here are nothing else."""
    queries = torch.tensor([[EOS, 5, 6], [EOS, EOS, EOS], [PAD, EOS, 7], [9, 8, EOS]]).repeat(4, 1)
    sampler = EagerSampler(tinytrial.model(), 1.0, Room("rows", 16), EOS, PAD)
    episodes = sampler.sample(queries, queries != PAD, uniforms(16, 20, "prompt"))
    rows = episodes.responses.tolist()
    assert episodes.lengths.tolist() == [row.index(EOS) + 1 if EOS in row else 20 for row in rows]
    assert episodes.ended.tolist() == [EOS in row for row in rows]
    assert len(set(episodes.ended.tolist())) == 2  # both kinds were seen
