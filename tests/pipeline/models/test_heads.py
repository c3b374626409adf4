from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tinynets import UNEVEN, network
from torch import Tensor, nn

from pipeline.models import heads as head_module
from pipeline.models.heads import fp32_logits, full_precision, head_backward, log_probs
from pipeline.models.loading import prepared
from pipeline.models.policy import ActorCritic, response_hidden
from pipeline.models.precision import GradientSteps, Precision
from pipeline.rewards.learned import RewardModel
from pipeline.rewards.settings import RewardConfig

CPU = torch.device("cpu")
HALF = Precision(CPU, "bf16")
TOKENS, WIDTH, VOCAB = 23, 5, 11


def bare_head(bias: bool) -> Any:
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

    lm, shapes = bare_head(bias), []
    hook = lm.linear.register_forward_hook(lambda module, inputs, output: shapes.append(len(output)))
    found = head_backward(lm, hidden, labels, temperature, token_loss, scale)
    hook.remove()
    assert (max(shapes), sum(shapes)) == (min(chunk, TOKENS), TOKENS)  # the whole is never held at once
    ours = [found.gradient, *(parameter.grad for parameter in lm.linear.parameters())]

    log_pi = torch.log_softmax(lm.linear(hidden).double() / temperature, dim=-1)
    logprobs, entropy = log_pi[torch.arange(TOKENS), labels], -(log_pi.exp() * log_pi).sum(-1)
    loss = scale * token_loss(slice(None), logprobs, entropy)
    wanted = torch.autograd.grad(loss, [hidden, *lm.linear.parameters()])
    torch.testing.assert_close(found.logprobs, logprobs.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.entropy, entropy.float(), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(ours, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def far_below_zero() -> Any:
    """A GPT-2 whose logits lie between -35 and -100, as those of the real one do: a part common to all tokens, and
    differences of nats."""
    model = prepared(network("gpt2"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.transformer.ln_f.weight.copy_(torch.randn(32, generator=generator))
        model.transformer.wte.weight.copy_(0.9 * torch.randn(50, 32, generator=generator))
        model.transformer.ln_f.bias[0], model.transformer.wte.weight[:, 0] = 20.0, -3.4
    return model


def rounded(tensor: Tensor) -> Tensor:
    return tensor.detach().bfloat16().double()


def test_log_probs_of_large_logits_are_exact_but_for_the_rounding_of_the_operands() -> None:
    model = far_below_zero()
    with HALF.autocast(), torch.no_grad():
        hidden = response_hidden(model, UNEVEN)
        found = log_probs(model, hidden, 1.0)
        plain = torch.log_softmax(nn.functional.linear(hidden, model.lm_head.weight).float(), -1)
    logits = rounded(hidden) @ rounded(model.lm_head.weight).t()
    assert -100 < float(logits.min()) < float(logits.max()) < -35
    wanted = torch.log_softmax(logits, -1)
    assert float((found - wanted).abs().max()) < 1e-4
    assert float((plain - wanted).abs().max()) > 0.1  # what a head rounded by autocast gives


def widened(head: nn.Linear) -> nn.Linear:
    fp32_logits(SimpleNamespace(get_output_embeddings=lambda: head))
    return head


@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_is_that_of_the_rounded_operands(bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    head = widened(nn.Linear(16, 40, bias=bias))
    hidden = torch.randn(2, 6, 16, generator=generator, requires_grad=True)
    weights = torch.randn(2, 6, 40, generator=generator)
    with HALF.autocast():
        (head(hidden) * weights).sum().backward()
    by_logits = rounded(weights)
    wanted = {
        "weight": by_logits.flatten(0, 1).t() @ rounded(hidden).flatten(0, 1),
        "bias": weights.double().sum((0, 1)),
    }
    torch.testing.assert_close(hidden.grad, (by_logits @ rounded(head.weight)).float(), rtol=1e-5, atol=1e-5)
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].float(), rtol=1e-5, atol=1e-5)


def test_the_copy_in_half_precision_follows_every_change_of_the_weight() -> None:
    head = widened(nn.Linear(16, 40, bias=False))
    inputs, steps = torch.randn(3, 16), GradientSteps(torch.optim.Adam(head.parameters(), lr=0.1, fused=True), HALF)

    def check() -> None:
        with HALF.autocast(), torch.inference_mode():  # as sampling does
            found = head(inputs)
        torch.testing.assert_close(found, (rounded(inputs) @ rounded(head.weight).t()).float(), rtol=1e-5, atol=1e-5)

    check()
    with HALF.autocast():
        head(inputs).sum().backward()  # with the copy that was made for sampling
    steps.step()
    check()
    head.load_state_dict({"weight": torch.randn(40, 16)})
    check()
    twin = copy.deepcopy(head)
    with torch.no_grad():
        head.weight.mul_(2)
    check()
    assert not torch.equal(twin.weight, head.weight)


def test_values_and_rewards_are_not_rounded() -> None:
    model = prepared(network("qwen2"))
    actor, scorer = ActorCritic(model), RewardModel.new(model, RewardConfig(), CPU)
    nn.init.normal_(actor.value_head.weight, generator=torch.Generator().manual_seed(0))
    actor.value_head.bias.data.fill_(70.0)
    scorer.head.bias.data.fill_(70.0)
    with HALF.autocast(), torch.no_grad():
        hidden, values = actor.hidden_and_values(UNEVEN)
        rewards = scorer(UNEVEN)
        assert torch.equal(values, full_precision(actor.value_head, hidden))
    exact = hidden.double() @ actor.value_head.weight.double().t() + 70
    torch.testing.assert_close(values, exact.squeeze(1).float(), rtol=1e-6, atol=1e-5)
    assert rewards.dtype == values.dtype == torch.float32
    assert not torch.equal(rewards, rewards.bfloat16().float())
