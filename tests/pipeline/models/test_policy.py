"""The forward that rollouts and training share, and sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tinynets import UNEVEN, network

from pipeline.models.loading import prepared
from pipeline.models.policy import (
    ActorCritic,
    Episodes,
    gather,
    log_probs,
    response_hidden,
    response_mask,
)
from pipeline.models.seeding import permutation, seed_of, uniforms

PAD, EOS = 0, 1


@pytest.fixture(scope="module", params=["qwen2", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    model = prepared(network(request.param))
    for parameter in model.parameters():  # the fresh network is near uniform; make it opinionated
        parameter.data.mul_(4.0)
    return model


def episodes(queries: list[list[int]], responses: list[list[int]], left: int = 0, right: int = 0) -> Episodes:
    """Padded with junk, `left` and `right` columns more than needed."""
    p, t = max(map(len, queries)) + left, max(map(len, responses)) + right
    grid = torch.full((len(queries), p + t), 7)
    query_mask = torch.zeros(len(queries), p, dtype=torch.bool)
    for row, (query, response) in enumerate(zip(queries, responses, strict=True)):
        grid[row, p - len(query) : p] = torch.tensor(query)
        grid[row, p : p + len(response)] = torch.tensor(response)
        query_mask[row, p - len(query) :] = True
    lengths = torch.tensor([len(response) for response in responses])
    return Episodes(
        grid, query_mask, response_mask(lengths, t), torch.tensor([response[-1] == EOS for response in responses])
    )


QUERIES, RESPONSES = [[3, 4, 5], [6], [8, 9]], [[10, EOS], [11, 12, 13, 14], [EOS]]


def test_padding_changes_nothing(model: Any) -> None:
    tight, loose = episodes(QUERIES, RESPONSES), episodes(QUERIES, RESPONSES, left=3, right=4)
    a, b = response_hidden(model, tight), response_hidden(model, loose)
    assert a.shape == (7, 32)
    assert torch.allclose(a, b, atol=1e-5)
    assert tight.labels.tolist() == loose.labels.tolist() == [10, EOS, 11, 12, 13, 14, EOS]


def test_log_probs_are_those_of_the_next_token(model: Any) -> None:
    """Against the plainest use of the library: one row, no padding, logits shifted by one."""
    flat = gather(
        log_probs(model, response_hidden(model, episodes(QUERIES, RESPONSES)), 0.7), episodes(QUERIES, RESPONSES).labels
    )
    expected = []
    for query, response in zip(QUERIES, RESPONSES, strict=True):
        logits = model(torch.tensor([query + response])).logits[0].double() / 0.7
        log_pi = torch.log_softmax(logits, -1)
        expected += [log_pi[len(query) - 1 + place, token].item() for place, token in enumerate(response)]
    assert flat.tolist() == pytest.approx(expected, abs=1e-4)


def test_the_value_head_starts_at_zero_and_shares_the_trunk(model: Any) -> None:
    actor = ActorCritic(model)
    batch = episodes(QUERIES, RESPONSES)
    log_pi, values = actor(batch, 1.0)
    assert values.tolist() == [0.0] * 7
    assert torch.allclose(log_pi, log_probs(model, response_hidden(model, batch), 1.0))
    values.sum().backward()
    assert actor.value_head.weight.grad is not None
    assert actor.value_head.weight.grad.abs().sum() > 0
    model.zero_grad()


def test_streams_are_named_not_counted() -> None:
    first = uniforms(2, 3, 0, "x", 1)
    permutation(5, 0, "y")
    assert torch.equal(uniforms(2, 3, 0, "x", 1), first)
    assert not torch.equal(uniforms(2, 3, 0, "x", 2), first)
    assert seed_of(1, 23) != seed_of(12, 3)
    assert sorted(permutation(50, "p").tolist()) == list(range(50))


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "opt"])
def test_a_sampled_padding_token_has_a_gradient_and_padding_has_none(architecture: str) -> None:
    model, pad = prepared(network(architecture, tie_word_embeddings=False)), 0
    table = model.get_input_embeddings().weight
    for sampled in (False, True):
        tokens = torch.where(UNEVEN.attention_mask.bool(), UNEVEN.query_responses, pad)
        tokens[0, 6] = pad if sampled else 2
        model.zero_grad()
        response_hidden(model, replace(UNEVEN, query_responses=tokens)).square().sum().backward()
        assert bool(table.grad[pad].any()) == sampled
