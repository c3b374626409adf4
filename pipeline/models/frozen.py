"""Networks that are not trained, with their linear maps held in half precision.

Only these weights are rounded; embeddings, norms, biases and heads stay fp32, and so do activations between maps. Where
products are computed in the same precision nothing else is: autocast rounds fp32 weights to the same numbers at every
product. Elsewhere each product expands them: on a CPU to fp32, so that neither fp16 nor bf16 arithmetic is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.models.quantization import matrix

Held = Literal["fp32", "fp16", "bf16"]
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class HalfLinear(nn.Linear):
    """A frozen linear map (..., in) to (..., out) whose weight is held in half precision."""

    def __init__(self, weight: Tensor, bias: nn.Parameter | None, dtype: torch.dtype) -> None:
        """weight (out, in), kept in its memory layout: another one can mean another kernel, which rounds otherwise."""
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, torch's name
        """The product in the precision of autocast, else in that of the input."""
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        return nn.functional.linear(input, self.weight.to(dtype), self.bias)


def hold(networks: Iterable[Any], how: Held) -> None:
    """Hold every linear map of frozen networks in half precision, in place; a network named twice is held once, and
    what is no network of torch is passed over.

    Heads with fp32 output, maps in few bits and embeddings stay as they are. Raises `ValueError` for a map that is
    trained.
    """
    if how == "fp32":
        return
    for network in networks:
        for parent in list(network.modules()) if isinstance(network, nn.Module) else []:
            for name, child in list(parent.named_children()):
                if _plain(child):
                    setattr(parent, name, _half(child, HALVES[how]))


def _plain(module: nn.Module) -> bool:
    """Whether a module is a linear map of torch or transformers itself, and no variety of it."""
    return type(module) is nn.Linear or (type(module).__name__ == "Conv1D" and matrix(module) is not None)


def _half(module: Any, dtype: torch.dtype) -> HalfLinear:
    weight = matrix(module)
    if weight is None or module.weight.requires_grad:
        raise ValueError("a map that is trained must stay fp32")
    return HalfLinear(weight, module.bias, dtype)
