"""The heads of a network: their output is fp32, whatever autocast computes the rest in.

A logit of -70 rounded to bf16 is off by up to 0.25, and log-softmax turns that into errors of a log-probability.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Fp32Head(nn.Linear):
    """A head of a language model or of a classifier: (..., H) to logits (..., V). Autocast rounds its operands, not its
    output."""

    _copy: tuple[tuple[Any, ...], Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, torch's name
        """Logits in fp32; without autocast the plain linear map."""
        device = input.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(input)
        weight = self._half(torch.get_autocast_dtype(device))
        logits: Tensor = _HalfProduct.apply(input.flatten(0, -2), self.weight, weight)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            logits = logits + self.bias
        return logits.view(*input.shape[:-1], -1)

    def _half(self, dtype: torch.dtype) -> Tensor:
        """The weight in half precision. That of a trained head is kept until the weight changes, as autocast would keep
        it."""
        if not self.weight.requires_grad:
            return self.weight.to(dtype)
        made_of = (self.weight._version, self.weight.data_ptr(), dtype)
        if self._copy is None or self._copy[0] != made_of:
            # Sampling runs in inference mode, and its tensors could not be saved for a backward.
            with torch.inference_mode(False), torch.no_grad():
                self._copy = made_of, self.weight.to(dtype)
        return self._copy[1]


class _HalfProduct(torch.autograd.Function):
    """Logits (N, V) in fp32 of states (N, H) and a weight (V, H), all products from half-precision operands.

    The weight's copy in half precision comes beside it; the gradient goes to the weight itself.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, copy: Tensor) -> Tensor:
        rounded = states.to(copy.dtype)
        ctx.save_for_backward(rounded, copy)
        ctx.dtype = states.dtype
        return product(rounded, copy.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rounded, copy = ctx.saved_tensors
        by_logits = gradients[0].to(copy.dtype)
        by_states = product(by_logits, copy).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        by_weight = product(by_logits.t(), rounded) if ctx.needs_input_grad[1] else None
        return by_states, by_weight, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two half-precision matrices, summed and returned in fp32."""
    with torch.autocast(left.device.type, enabled=False):
        if left.device.type == "cuda":  # on tensor cores; a product of fp32 operands takes a T4 eight times as long
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left.float(), right.float())


def fp32_logits(model: Any) -> Any:
    """Have the language-modelling head of `model` be an `Fp32Head`, in place: weights, ties and names stay. Returns the
    model."""
    _widen(model.get_output_embeddings())
    return model


def fp32_classes(model: Any) -> Any:
    """The same for the head of a classifier: its linear map to as many numbers as there are labels."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features == model.config.num_labels:
            _widen(module)
    return model


def _widen(head: Any) -> None:
    if type(head) is nn.Linear:
        head.__class__ = Fp32Head


def full_precision(head: nn.Linear, states: Tensor) -> Tensor:
    """Apply a head (H, n) to states (N, H): (N, n) in fp32, its operands too; (N,) where n is 1."""
    with torch.autocast(states.device.type, enabled=False):
        values: Tensor = head(states.float()).squeeze(-1)
    return values
