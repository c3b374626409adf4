"""Rows laid end to end give what padded rows give, on every architecture that is packed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tinynets import EVEN, UNEVEN, network
from torch import Tensor

from pipeline.models import cpu
from pipeline.models.packing import ARCHITECTURES, packs
from pipeline.models.policy import Episodes, response_hidden


def both(model: Any, batch: Episodes) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states and all gradients, packed and by transformers' own eager attention on padded rows."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    results: list[list[Tensor]] = []
    for one in (model, plain):
        hidden = response_hidden(one, batch)
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
        (hidden * weights).sum().backward()
        results.append([hidden, *(parameter.grad for parameter in one.parameters() if parameter.grad is not None)])
    return results[0], results[1]


def close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Return whether tensors agree to fp32 rounding, each by its own size."""
    return len(ours) == len(theirs) and all(
        float((a - b).detach().norm()) <= 1e-5 * float(b.detach().norm()) + 1e-6
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("batch", [UNEVEN, EVEN], ids=["uneven", "even"])
def test_packed_rows_give_the_states_and_gradients_of_padded_ones(architecture: str, batch: Episodes) -> None:
    model = network(architecture)
    assert packs(model, 13)
    assert close(*both(model, batch))


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 2}, {"_short": 0}], ids=["grouped heads", "long rows"])
def test_the_fused_attention_of_torch_gives_the_same(changes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    if changes.pop("_short", None) is not None:
        monkeypatch.setattr(cpu, "SHORT", 0)
    assert close(*both(network("qwen2", **changes), UNEVEN))


def test_short_attention_has_the_gradient_of_its_definition() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)

    def plainly() -> Tensor:
        return (torch.softmax((q @ k.mT * 0.3).masked_fill(future, -torch.inf), -1) @ v).transpose(1, 2)

    ours = cpu.short_attention(q, k, v, 0.3)
    weights = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, (q, k, v), weights), torch.autograd.grad(plainly(), (q, k, v), weights), strict=True
    ):
        assert torch.allclose(a, b)
    assert torch.allclose(ours, plainly())


def test_an_unknown_architecture_and_a_window_that_is_too_narrow_are_padded() -> None:
    assert not packs(network("stablelm"), 5)
    narrow = network("mistral", sliding_window=8)
    assert packs(narrow, 8)
    assert not packs(narrow, 9)
