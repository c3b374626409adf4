"""Decoding for clients against the sampler of training, token for token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tiny_service import network
from torch import Tensor

from pipeline.models.sampler import EagerSampler
from pipeline.models.sampling import tokenize_prompts
from pipeline.models.seeding import uniforms
from pipeline.resources.out_of_memory import Room
from studies.serving.decoding import _chosen, decode_rows, noise_of

PROMPTS = [[9, 4, 7], [5], [5], [11, 3, 8, 6, 2], [9, 4, 7]]
WIDTH, EOS, PAD = 20, 293, 0


def drawn(
    prompts: Sequence[list[int]], noise: Sequence[Tensor], temperatures: Sequence[float], seed: int = 3
) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in prompts]

    def step(live: list[int], tokens: list[int], logits: Tensor) -> list[bool]:
        assert logits.shape[0] == len(live) == len(tokens)
        for row, token in zip(live, tokens, strict=True):
            found[row].append(token)
        return [token != EOS and len(found[row]) < len(noise[row]) for row, token in zip(live, tokens, strict=True)]

    decode_rows(network(seed), prompts, noise, temperatures, PAD, step)
    return found


class Fixed:
    """A tokenizer that is given tokens."""

    pad_token_id = PAD

    def __call__(self, rows: list[list[int]], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": rows}


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_it_draws_what_the_sampler_of_training_draws(temperature: float) -> None:
    noise = uniforms(len(PROMPTS), WIDTH, "any")
    queries, mask = tokenize_prompts(Fixed(), PROMPTS)  # type: ignore[arg-type]
    sampler = EagerSampler(network(3), temperature, Room("rows", 64), eos_id=EOS, pad_id=PAD)
    episodes = sampler.sample(queries, mask, noise) if temperature else sampler.greedy(queries, mask, WIDTH)
    expected = [row[: int(n)].tolist() for row, n in zip(episodes.responses, episodes.lengths, strict=True)]
    assert drawn(PROMPTS, list(noise), [temperature] * len(PROMPTS)) == expected
    assert len(set(map(len, expected))) > 1 or temperature != 1.0, "rows end at different times"


def test_a_row_depends_on_its_own_noise_temperature_and_length_alone() -> None:
    noise = [noise_of(7, i, n) for i, n in enumerate((20, 3, 11, 20, 7))]
    heat = [1.0, 0.0, 1.5, 0.3, 1.0]
    alone = [drawn([PROMPTS[i]], [noise[i]], [heat[i]])[0] for i in range(5)]
    assert drawn(PROMPTS, noise, heat) == alone
    turned = [4, 2, 0, 3, 1]
    assert drawn([PROMPTS[i] for i in turned], [noise[i] for i in turned], [heat[i] for i in turned]) == [
        alone[i] for i in turned
    ]
    assert [len(row) for row in alone] != [20] * 5


@pytest.mark.parametrize("temperature", [1e-6, 1e-37, 1e-40, 1e-300])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    """Logits divided by it would not be finite, and the last token of the vocabulary would be drawn."""
    logits = torch.tensor([[1.0, 50.0, 3.0, 2.0], [-90.0, -40.0, -30.0, -80.0]])
    noise = torch.tensor([0.5, 0.999], dtype=torch.float64)
    assert _chosen(logits, noise, torch.tensor([temperature] * 2)).tolist() == [1, 2]


def test_noise_is_named_by_seed_and_place_and_a_longer_row_begins_alike() -> None:
    assert torch.equal(noise_of(1, 0, 5), noise_of(1, 0, 900)[:5])
    assert not torch.equal(noise_of(1, 0, 5), noise_of(1, 1, 5))
    assert not torch.equal(noise_of(1, 0, 5), noise_of(2, 0, 5))
    assert noise_of(-(2**63), 3, 4).dtype == torch.float64
