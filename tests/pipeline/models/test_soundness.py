"""Every base has the logits of its head, and nothing in a network that is trained is random."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tinynets import UNEVEN, network
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.anatomy import blocks_of, recomputes, recomputing
from pipeline.models.loading import check_logits, prepared
from pipeline.models.packing import ARCHITECTURES
from pipeline.models.policy import response_hidden

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
