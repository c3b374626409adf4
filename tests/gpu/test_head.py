"""The language-modelling head on the card, at the size of Qwen1.5-0.5B and with logits as far from 0 as GPT-2's."""

from __future__ import annotations

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, QWEN, choose
from torch import Tensor

from pipeline.models.lm_head import head_backward
from pipeline.models.loading import prepared
from pipeline.models.policy import log_probs
from pipeline.models.precision import DTYPES, Precision
from pipeline.models.seeding import stream

pytestmark = pytest.mark.gpu
TOKENS, WIDTH = 64, 256
OFFSET = -70.0
"""Offset of the logits: rounded to bf16 they would be off by up to 0.25."""


@pytest.mark.parametrize("precision", HALVES)
def test_logits_are_not_rounded_and_gradients_pass_through_the_head(
    monkeypatch: pytest.MonkeyPatch, precision: str, record_property: pytest.RecordProperty
) -> None:
    """Against float64 on operands that are rounded to the precision."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    choose(monkeypatch, precision)
    torch.manual_seed(0)
    sizes = {**QWEN, "hidden_size": WIDTH, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 4}
    lm = prepared(Qwen2ForCausalLM(Qwen2Config(**{**sizes, "num_key_value_heads": 4})).eval()).to(DEVICE)
    hidden, weight = (
        torch.randn(TOKENS, WIDTH, generator=stream("gpu head")).to(DEVICE),
        lm.get_output_embeddings().weight,
    )
    with torch.no_grad():
        weight[:, 0], hidden[:, 0] = 1.0, OFFSET
    labels = torch.randint(0, QWEN["vocab_size"], (TOKENS,), generator=stream("gpu labels")).to(DEVICE)
    with Precision.of(hidden.device).autocast():
        with torch.no_grad():
            logits = log_probs(lm, hidden, 1.0)
        one = torch.ones((), device=DEVICE)
        found = head_backward(lm, hidden, labels, 1.0, lambda part, logprobs, entropy: -logprobs.sum(), one)

    rounded, half = (tensor.detach().to(DTYPES[precision]).double() for tensor in (hidden, weight))
    exact = torch.log_softmax(rounded @ half.T, dim=-1)
    apart = float((logits.double() - exact).abs().max())
    record_property("largest error, nats", f"{apart:.2g}")
    assert logits.dtype == torch.float32
    assert apart < 2e-3
    torch.testing.assert_close(found.logprobs.double(), exact.gather(1, labels[:, None]).squeeze(1), atol=2e-3, rtol=0)
    wanted = exact.exp()
    wanted[torch.arange(TOKENS, device=DEVICE), labels] -= 1
    assert distance(found.gradient, wanted @ half) < 0.02
    assert distance(weight.grad, wanted.T @ rounded) < 0.02


def distance(found: Tensor | None, wanted: Tensor) -> float:
    """Return the relative error, by the norm."""
    return float((found.double() - wanted).norm() / wanted.norm())
