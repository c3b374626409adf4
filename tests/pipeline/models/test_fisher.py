from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn
from tinytrial import EOS, PAD, SIZES
from torch import Tensor

from pipeline.models import heads as head_module
from pipeline.models.adapters import choose_trained
from pipeline.models.fisher import fisher_product, flat, swapped, trained
from pipeline.models.loading import scratch_model
from pipeline.models.meter import meter
from pipeline.models.policy import Episodes, response_hidden, response_mask
from pipeline.models.trunk import packs

VOCAB = 7
SMALL = SIZES.model_copy(update={"hidden_size": 8, "intermediate_size": 12})
EPISODES = Episodes(
    torch.randint(2, VOCAB, (3, 7), generator=torch.Generator().manual_seed(1)),
    torch.tensor([[False, True, True], [True, True, True], [False, False, True]]),
    response_mask(torch.tensor([4, 2, 3]), 4),
    torch.ones(3).bool(),
)


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The architecture's own norms round to fp32, which would hide all but large mistakes."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    def forward(self: Any, states: Tensor) -> Tensor:
        scaled: Tensor = (
            self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        )
        return scaled

    monkeypatch.setattr(Qwen2RMSNorm, "forward", forward)


def network(**knobs: Any) -> Any:
    lm = choose_trained(scratch_model(SMALL, VOCAB, PAD, EOS, 64, seed=3), trial_config(**knobs)).double().eval()
    with torch.no_grad():
        for seed, parameter in enumerate(trained(lm)):
            parameter.add_(0.3 * drawn(*parameter.shape, seed=seed))
    return lm


def explicit(lm: Any, temperature: float) -> Tensor:
    """Σ over tokens and vocabulary of π ∇log π ∇log π', (P, P)."""
    logits = lm.get_output_embeddings()(response_hidden(lm, EPISODES)) / temperature
    table, parameters = torch.log_softmax(logits, dim=-1), trained(lm)
    total: Tensor = torch.zeros(())
    for row in table:
        for entry in row:
            slope = flat(torch.autograd.grad(entry, parameters, retain_graph=True, allow_unused=True), parameters)
            total = total + entry.exp().detach() * torch.outer(slope, slope)
    return total


@pytest.mark.parametrize("knobs", [{}, {"adapter__kind": "lora", "adapter__rank": 2}], ids=["all", "lora"])
@pytest.mark.parametrize(("temperature", "chunk"), [(1.0, 100), (0.7, 2)])
def test_it_is_the_explicit_matrix_times_the_vector(
    monkeypatch: pytest.MonkeyPatch, knobs: dict[str, Any], temperature: float, chunk: int
) -> None:
    monkeypatch.setattr(head_module, "chunk_tokens", lambda *_: chunk)
    lm = network(**knobs)
    assert packs(lm, 7)
    size = sum(parameter.numel() for parameter in trained(lm))
    vector, matrix = drawn(size, seed=8), explicit(lm, temperature)
    found = fisher_product(lm, EPISODES, vector, temperature)
    torch.testing.assert_close(found, matrix @ vector, rtol=1e-9, atol=1e-10)
    assert float(found.abs().max()) > 1e-3
    again = fisher_product(lm, EPISODES, vector, temperature, checkpointing=True)
    torch.testing.assert_close(again, found, rtol=1e-10, atol=1e-12)


def test_other_weights_stand_in_for_tied_ones_too_and_go_when_something_breaks() -> None:
    lm = network()
    parameters = trained(lm)
    others = [parameter.detach() * 2 for parameter in parameters]
    with swapped(lm, others):
        assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight is others[0]
    with contextlib.suppress(RuntimeError), swapped(lm, others):
        raise RuntimeError
    assert all(one is other for one, other in zip(trained(lm), parameters, strict=True))


def test_the_meter_counts_a_forward_with_tangents_three_times() -> None:
    lm, counted = network(), list[float]()
    vector, head = drawn(sum(p.numel() for p in trained(lm)), seed=8), lm.get_output_embeddings()
    meter([lm], lambda flops, bytes_: counted.append(flops))
    with torch.no_grad():
        forward = head(response_hidden(lm, EPISODES))
    plain = sum(counted)
    head(response_hidden(lm, EPISODES).detach().requires_grad_())
    with_backward = sum(counted) - plain
    counted.clear()
    fisher_product(lm, EPISODES, vector, 1.0)
    assert forward.shape == (9, VOCAB)
    assert sum(counted) == 3 * plain + with_backward
