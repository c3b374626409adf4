"""The head's own gradient against autograd on the whole (tokens, vocabulary) tensor, in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.models import lm_head as head_module
from pipeline.models.lm_head import head_backward

TOKENS, WIDTH, VOCAB = 23, 5, 11


def network(bias: bool) -> Any:
    generator = torch.Generator().manual_seed(1)
    linear = nn.Linear(WIDTH, VOCAB, bias=bias)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return SimpleNamespace(
        config=SimpleNamespace(vocab_size=VOCAB), get_output_embeddings=lambda: linear, linear=linear
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("ent_coef", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 4, TOKENS, 100])
def test_it_is_the_gradient_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, bias: bool, temperature: float, ent_coef: float, chunk: int
) -> None:
    monkeypatch.setattr(head_module, "chunk_tokens", lambda *_: chunk)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, requires_grad=True)
    labels = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    weights = torch.randn(TOKENS, generator=generator)
    scale = torch.tensor(3.0)

    def token_loss(rows: slice, logprobs: Tensor, entropy: Tensor) -> Tensor:
        loss = (weights[rows] * logprobs.exp()).sum()
        return loss - ent_coef * entropy.sum() if ent_coef else loss

    lm = network(bias)
    found = head_backward(lm, hidden, labels, temperature, token_loss, scale)
    ours = [found.gradient, *(parameter.grad for parameter in lm.linear.parameters())]

    log_pi = torch.log_softmax(lm.linear(hidden).double() / temperature, dim=-1)
    logprobs, entropy = log_pi[torch.arange(TOKENS), labels], -(log_pi.exp() * log_pi).sum(-1)
    loss = scale * token_loss(slice(None), logprobs, entropy)
    wanted = torch.autograd.grad(loss, [hidden, *lm.linear.parameters()])
    torch.testing.assert_close(found.logprobs, logprobs.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.entropy, entropy.float(), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(ours, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_no_tensor_of_all_tokens_and_the_vocabulary_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "chunk_tokens", lambda *_: 4)
    lm, shapes = network(False), []
    lm.linear.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    hidden, labels = torch.randn(TOKENS, WIDTH), torch.zeros(TOKENS, dtype=torch.long)
    head_backward(lm, hidden, labels, 1.0, lambda rows, logprobs, entropy: logprobs.sum(), torch.tensor(1.0))
    assert max(rows for rows, _ in shapes) == 4
    assert sum(rows for rows, _ in shapes) == TOKENS
