"""The Fisher matrix of a policy times a vector, exactly: J'FJ v, summed over tokens, with J from weights to logits.

J v is a forward with derivatives (forward mode), J' a backward; F at the logits has a closed form, so that nothing is
differentiated twice, which the chunked head does not allow. All of it is in fp32, whatever autocast computes the rest
in: half precision would lose small directions, and fp16 overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.algorithms.mathematics.natural_gradient import fisher_of_logits
from pipeline.models.heads import chunks
from pipeline.models.policy import Episodes, response_hidden
from pipeline.models.trunk import CausalLM, recomputing


def trained(lm: CausalLM) -> list[nn.Parameter]:
    """The weights that training moves, each once; a flat vector (P,) has them in this order."""
    return [parameter for parameter in lm.parameters() if parameter.requires_grad]


def flat(tensors: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """One vector (P,) of tensors as large as the parameters; None counts as 0."""
    pairs = zip(tensors, parameters, strict=True)
    return torch.cat([(torch.zeros_like(like) if one is None else one).flatten() for one, like in pairs])


def shaped_as(parameters: Sequence[Tensor], vector: Tensor) -> list[Tensor]:
    """The parts of a vector (P,), as views with the parameters' shapes."""
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


@contextmanager
def swapped(lm: CausalLM, tensors: Sequence[Tensor]) -> Iterator[None]:
    """The network with other tensors in place of its trained weights, tied ones too; the weights stay as they are."""
    others = {id(parameter): tensor for parameter, tensor in zip(trained(lm), tensors, strict=True)}
    slots = [
        (module._parameters, name, parameter)
        for module in lm.modules()
        for name, parameter in module._parameters.items()
        if id(parameter) in others
    ]
    try:
        for place, name, parameter in slots:
            place[name] = others[id(parameter)]
        yield
    finally:
        for place, name, parameter in slots:
            place[name] = parameter


def fisher_product(
    lm: CausalLM, episodes: Episodes, vector: Tensor, temperature: float, checkpointing: bool = False
) -> Tensor:
    """J'FJ `vector`, (P,), summed over the valid response tokens of some episodes; divided by their number it is the
    Hessian of the mean KL(old || new) at new = old, times the vector."""
    parameters, device = trained(lm), vector.device.type
    with (
        torch.autocast(device, enabled=False),
        sdpa_kernel(SDPBackend.MATH),  # torch's fused kernels have no forward mode
        forward_ad.dual_level(),
    ):
        parts = zip(parameters, shaped_as(parameters, vector), strict=True)
        duals: list[Tensor] = [forward_ad.make_dual(weight.detach(), part) for weight, part in parts]  # type: ignore[no-untyped-call]
        with torch.no_grad(), swapped(lm, duals):
            moving = response_hidden(lm, episodes)
        with torch.enable_grad(), recomputing([lm], checkpointing):
            hidden = response_hidden(lm, episodes)
        by_hidden, by_head = _through_the_head(lm, moving, duals, episodes.labels, temperature)
        by_trunk: Sequence[Tensor | None] = [None] * len(parameters)
        if hidden.requires_grad:
            by_trunk = torch.autograd.grad(hidden, parameters, by_hidden, allow_unused=True)
    return flat(by_trunk, parameters).add_(by_head)


def _through_the_head(
    lm: CausalLM, moving: Tensor, duals: Sequence[Tensor], labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return F times the logits' tangents of dual hidden states (N, H), taken back to hidden states (N, H) and to the
    head's weights, (P,); a chunk of tokens at a time."""
    parameters, head = trained(lm), lm.get_output_embeddings()
    states, _ = _parts(moving)
    by_hidden, by_head = [], flat([None] * len(parameters), parameters)
    for rows in chunks(labels, int(lm.config.vocab_size)):
        with torch.no_grad(), swapped(lm, duals):
            logits, tangent = _parts(head(moving[rows]) / temperature)
            slope = fisher_of_logits(torch.softmax(logits, dim=-1), tangent) / temperature
        with torch.enable_grad():
            leaf = states[rows].detach().requires_grad_()
            found = torch.autograd.grad(head(leaf), [leaf, *parameters], slope, allow_unused=True)
        by_hidden.append(found[0])
        for total, part in zip(shaped_as(parameters, by_head), found[1:], strict=True):
            if part is not None:
                total.add_(part)
    return torch.cat(by_hidden), by_head


def _parts(dual: Tensor) -> tuple[Tensor, Tensor]:
    primal, tangent = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
    return primal, tangent
