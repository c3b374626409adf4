"""Frozen networks in half precision: the same numbers where products are in that precision, small differences
elsewhere."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from tinynets import UNEVEN, network
from torch import nn

from pipeline.models.fp32_heads import Fp32Head, fp32_logits
from pipeline.models.loading import freeze
from pipeline.models.meter import linear_maps
from pipeline.models.policy import response_hidden
from pipeline.models.quantization import HALVES, HalfLinear, hold, matrix
from pipeline.training.token_stats import TokenStats, token_stats

KL = {("fp16", "fp32"): 1e-6, ("bf16", "fp32"): 1e-4, ("bf16", "fp16"): 1e-4, ("fp16", "bf16"): 1e-3}
"""Nats per token: above what was measured of these networks, by (held, products)."""


def sharp(architecture: str, **changes: Any) -> Any:
    """A frozen network whose logits differ by several nats, as those of a trained one do."""
    lm = fp32_logits(network(architecture, **changes))
    for parameter in lm.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4.0)
    return freeze(lm)


def apart(policy: Any, reference: Any, products: str) -> TokenStats:
    half = HALVES.get(products)
    context = contextlib.nullcontext() if half is None else torch.autocast("cpu", dtype=half)
    with context, torch.no_grad():
        hidden, of_reference = response_hidden(policy, UNEVEN), response_hidden(reference, UNEVEN)
        return token_stats(policy, hidden, reference, of_reference, UNEVEN.labels, 1.0)


@pytest.mark.parametrize("held", HALVES)
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gpt_neox", "llama"])
def test_a_reference_held_as_products_are_computed_is_the_policy_to_the_bit(architecture: str, held: Any) -> None:
    policy = sharp(architecture)
    reference = copy.deepcopy(policy)
    hold([reference], held)
    found = apart(policy, reference, held)
    assert torch.equal(found.logprobs, found.ref_logprobs)
    assert float(found.kl.max()) == 0.0


@pytest.mark.parametrize(("held", "products"), KL)
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_rounding_that_shows_is_small_and_that_of_the_weights_alone(
    architecture: str, held: Any, products: str
) -> None:
    policy = sharp(architecture)
    reference, rounded = copy.deepcopy(policy), copy.deepcopy(policy)
    hold([reference], held)
    for _, module in rounded.named_modules():
        if matrix(module) is not None and not isinstance(module, Fp32Head):
            module.weight.data = module.weight.data.to(HALVES[held]).float()
    drift = float(apart(policy, reference, products).kl.mean())
    assert 1e-9 < drift < KL[held, products]
    assert torch.equal(apart(rounded, reference, products).ref_logprobs, apart(rounded, rounded, products).logprobs)


def test_maps_alone_are_held_in_half_precision_and_take_half_the_bytes() -> None:
    plain = sharp("qwen2", tie_word_embeddings=True)
    held = copy.deepcopy(plain)
    hold([held, held], "bf16")
    assert linear_maps(held) == linear_maps(plain), "the work that is counted stays the same"
    maps = [module for module in held.modules() if isinstance(module, HalfLinear)]
    assert len(maps) == 7 * 3
    assert {module.weight.dtype for module in maps} == {torch.bfloat16}
    of_maps = {id(module.weight) for module in maps}
    assert {one.dtype for one in held.parameters() if id(one) not in of_maps} == {torch.float32}
    assert held.get_output_embeddings().weight is held.get_input_embeddings().weight, "the tie stays"
    saved = sum(one.nbytes for one in plain.parameters()) - sum(one.nbytes for one in held.parameters())
    assert saved == 2 * sum(one.weights for one in linear_maps(plain))
    assert not any(one.requires_grad for one in held.parameters())


def test_in_fp32_nothing_is_touched_and_what_is_no_network_is_passed_over() -> None:
    plain = sharp("qwen2")
    before = {name: (id(one), one.dtype) for name, one in plain.named_parameters()}
    hold([plain, object()], "fp32")
    assert {name: (id(one), one.dtype) for name, one in plain.named_parameters()} == before
    hold([object()], "fp16")


def test_a_map_that_is_trained_is_not_rounded() -> None:
    with pytest.raises(ValueError, match="trained must stay fp32"):
        hold([nn.Sequential(nn.Linear(2, 2))], "fp16")
