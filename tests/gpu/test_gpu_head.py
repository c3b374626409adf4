"""The language-modelling head on the card, at the size of Qwen1.5-0.5B and with logits as far from 0 as GPT-2's."""

from __future__ import annotations

import pytest
import torch
from gpu.base import QWEN
from gpu.hardware import DEVICE, HALVES, choose
from torch import Tensor

from pipeline.models.lm_head import head_backward
from pipeline.models.loading import CausalLM
from pipeline.models.policy import log_probs
from pipeline.models.precision import DTYPES, Precision
from pipeline.models.seeding import stream

pytestmark = pytest.mark.gpu
TOKENS, WIDTH = 64, 256
OFFSET = -70.0
"""Of the logits: rounded to bf16 they would be off by up to 0.25."""


def network() -> CausalLM:
    """A trunk that nobody calls under a head of the real vocabulary, loaded as every network is."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from pipeline.models import loading

    torch.manual_seed(0)
    sizes = {**QWEN, "hidden_size": WIDTH, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 4}
    made = Qwen2ForCausalLM(Qwen2Config(**{**sizes, "num_key_value_heads": 4})).eval()
    return loading.prepared(made).to(DEVICE)


def states(lm: CausalLM) -> Tensor:
    """Hidden states (N, H) whose logits lie around `OFFSET`."""
    hidden = torch.randn(TOKENS, WIDTH, generator=stream("gpu head")).to(DEVICE)
    with torch.no_grad():
        lm.get_output_embeddings().weight[:, 0] = 1.0
    hidden[:, 0] = OFFSET
    return hidden


def exact(lm: CausalLM, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Log-probabilities in float64 of operands that are rounded to `dtype`."""
    weight = lm.get_output_embeddings().weight.detach().to(dtype).double()
    return torch.log_softmax(hidden.to(dtype).double() @ weight.T, dim=-1)


@torch.no_grad()
@pytest.mark.parametrize("precision", HALVES)
def test_logits_are_not_rounded(
    monkeypatch: pytest.MonkeyPatch, precision: str, record_property: pytest.RecordProperty
) -> None:
    choose(monkeypatch, precision)
    lm = network()
    hidden = states(lm)
    with Precision.of(hidden.device).autocast():
        found = log_probs(lm, hidden, 1.0)
    apart = float((found.double() - exact(lm, hidden, DTYPES[precision])).abs().max())
    record_property("largest error, nats", f"{apart:.2g}")
    assert found.dtype == torch.float32
    assert apart < 2e-3


@pytest.mark.parametrize("precision", HALVES)
def test_gradients_through_the_head(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    choose(monkeypatch, precision)
    lm = network()
    hidden, weight = states(lm), lm.get_output_embeddings().weight
    labels = torch.randint(0, QWEN["vocab_size"], (TOKENS,), generator=stream("gpu labels")).to(DEVICE)
    one = torch.ones((), device=DEVICE)
    with Precision.of(hidden.device).autocast():
        found = head_backward(lm, hidden, labels, 1.0, lambda part, logprobs, entropy: -logprobs.sum(), one)
    log_pi = exact(lm, hidden, DTYPES[precision])
    wanted = log_pi.exp()
    wanted[torch.arange(TOKENS, device=DEVICE), labels] -= 1
    half = weight.detach().to(DTYPES[precision]).double()
    by_hidden, by_weight = wanted @ half, wanted.T @ hidden.to(DTYPES[precision]).double()
    assert distance(found.gradient, by_hidden) < 0.02
    assert distance(weight.grad, by_weight) < 0.02
    torch.testing.assert_close(found.logprobs.double(), log_pi.gather(1, labels[:, None]).squeeze(1), atol=2e-3, rtol=0)


def distance(found: Tensor | None, wanted: Tensor) -> float:
    """Relative, by the norm."""
    assert found is not None
    return float((found.double() - wanted).norm() / wanted.norm())
