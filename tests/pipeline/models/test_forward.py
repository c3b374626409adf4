from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tinynets import EVEN, UNEVEN, network
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models import trunk
from pipeline.models.heads import gather, log_probs
from pipeline.models.loading import check_logits, prepared
from pipeline.models.policy import ActorCritic, Episodes, response_hidden
from pipeline.models.seeding import permutation, seed_of, uniforms
from pipeline.models.trunk import ARCHITECTURES, SHORT, ShortAttention, blocks_of, packs, recomputes, recomputing

PADDED = ("bloom", "mixtral", "opt", "openai-gpt")
CHANGED: dict[str, dict[str, Any]] = {
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.0625},
    "gemma2": {"final_logit_softcapping": 30.0},
}
"""Architectures that change what comes out of their head, and by what."""
RANDOM: dict[str, dict[str, float]] = {
    "starcoder2": {"attention_dropout": 0.5, "residual_dropout": 0.5, "embedding_dropout": 0.5},
    "opt": {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5},
    "mixtral": {"router_jitter_noise": 0.5, "attention_dropout": 0.5},
}
"""Architectures that are random in training mode: by modules, by functions, by dropped layers, by noise on a router."""


def build(architecture: str, **changes: Any) -> Any:
    return prepared(network(architecture, "" if architecture in ARCHITECTURES else "eager", **changes))


def check_packing(model: Any, batch: Episodes) -> None:
    """Hidden states and all gradients are those of transformers' own eager attention on padded rows, up to fp32
    rounding, each by its own size."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    results: list[list[Tensor]] = []
    for one in (model, plain):
        hidden = response_hidden(one, batch)
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
        (hidden * weights).sum().backward()
        results.append([hidden, *(parameter.grad for parameter in one.parameters() if parameter.grad is not None)])
    for a, b in zip(*results, strict=True):
        assert float((a - b).detach().norm()) <= 1e-5 * float(b.detach().norm()) + 1e-6


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("batch", [UNEVEN, EVEN], ids=["uneven", "even"])
def test_packed_rows_give_the_states_and_gradients_of_padded_ones(architecture: str, batch: Episodes) -> None:
    model = network(architecture)
    assert packs(model, 13)
    check_packing(model, batch)


@pytest.mark.parametrize(("changes", "short"), [({"num_key_value_heads": 2}, SHORT), ({}, 0)])
def test_the_fused_attention_of_torch_gives_the_same(
    changes: dict[str, int], short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For grouped heads, and for rows that are long."""
    monkeypatch.setattr(trunk, "SHORT", short)
    check_packing(network("qwen2", **changes), UNEVEN)


def test_short_attention_has_the_gradient_of_its_definition() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    plain = (torch.softmax((q @ k.mT * 0.3).masked_fill(future, -torch.inf), -1) @ v).transpose(1, 2)
    ours = ShortAttention.apply(q, k, v, 0.3)
    torch.testing.assert_close(ours, plain)
    weights = torch.randn_like(ours)
    found, wanted = (torch.autograd.grad(one, (q, k, v), weights) for one in (ours, plain))
    torch.testing.assert_close(found, wanted)


def test_an_unknown_architecture_and_a_window_that_is_too_narrow_are_padded() -> None:
    assert not packs(network("stablelm"), 5)
    narrow = network("mistral", sliding_window=8)
    assert packs(narrow, 8)
    assert not packs(narrow, 9)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_log_probs_are_those_of_the_next_token(architecture: str) -> None:
    """Against the plainest use of the library: one row, no padding, logits shifted by one. Values start at 0."""
    model = prepared(network(architecture))
    for parameter in model.parameters():  # the fresh network is near uniform; make it opinionated
        parameter.data.mul_(4.0)
    log_pi, values = ActorCritic(model)(UNEVEN, 0.7)
    expected = []
    for row, length in enumerate(UNEVEN.lengths.tolist()):
        query = UNEVEN.query_responses[row, : UNEVEN.context_length][UNEVEN.query_mask[row]].tolist()
        response = UNEVEN.responses[row, :length].tolist()
        logits = model(torch.tensor([query + response])).logits[0].double() / 0.7
        table = torch.log_softmax(logits, -1)
        expected += [table[len(query) - 1 + place, token].item() for place, token in enumerate(response)]
    assert gather(log_pi, UNEVEN.labels).tolist() == pytest.approx(expected, abs=1e-4)
    assert torch.equal(log_pi, log_probs(model, response_hidden(model, UNEVEN), 0.7))
    assert values.tolist() == [0.0] * len(expected)


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


@pytest.mark.parametrize("architecture", [*sorted(ARCHITECTURES), *PADDED])
def test_a_sound_network_passes(architecture: str) -> None:
    check_logits(build(architecture), "model.base = 'x'")


@pytest.mark.parametrize("architecture", CHANGED)
def test_logits_that_are_changed_after_the_head_are_refused(architecture: str) -> None:
    model = build(architecture, **CHANGED[architecture])
    for parameter in model.get_output_embeddings().parameters():  # a cap shows on logits of a network that has learned
        parameter.data.mul_(300.0)
    with pytest.raises(
        UserError, match=rf"^model\.base = 'x': .*architecture {architecture} changes its logits .* up to \d.* nats"
    ):
        check_logits(model, "model.base = 'x'")


@pytest.mark.parametrize("architecture", RANDOM)
def test_nothing_is_random_while_a_network_is_trained(architecture: str) -> None:
    """States and gradients repeat bit for bit, recomputing changes them by rounding at most, and no random number is
    drawn."""
    model = build(architecture, **RANDOM[architecture])
    found: list[list[Tensor]] = []
    generator = torch.get_rng_state()
    for again in (False, True, True):
        model.zero_grad()
        with recomputing([model], again):
            assert [recomputes(block) for block in blocks_of(model)] == [again] * 3
            hidden = response_hidden(model, UNEVEN)
        hidden.square().sum().backward()
        found.append([hidden.detach(), *(one.grad for one in model.parameters() if one.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(found[1], found[2], strict=True))
    # The last block works on other positions there.
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(generator, torch.get_rng_state())


def test_streams_are_named_not_counted() -> None:
    first = uniforms(2, 3, 0, "x", 1)
    permutation(5, 0, "y")
    assert torch.equal(uniforms(2, 3, 0, "x", 1), first)
    assert not torch.equal(uniforms(2, 3, 0, "x", 2), first)
    assert seed_of(1, 23) != seed_of(12, 3)
    assert sorted(permutation(50, "p").tolist()) == list(range(50))
