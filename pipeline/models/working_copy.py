"""A second network with the weights of a policy as its linear maps use them: in half precision, and adapters merged.

Everything else (embeddings, norms, buffers) is shared with the policy itself, in fp32. So the copy computes what
autocast computes with the policy, and its residual sums do not overflow in fp16, but no weight is cast at a call.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.models.adapters import adapter_layers
from pipeline.models.anatomy import CausalLM
from pipeline.models.fp32_heads import Fp32Head
from pipeline.models.quantization import QuantizedLinear, matrix


class WorkingCopy:
    """The copy of one policy. Its linear maps hold nothing before the first `refresh`."""

    def __init__(self, lm: CausalLM, dtype: torch.dtype) -> None:
        """The linear maps are of `dtype`, on the device of `lm`. Maps that share a weight share its copy."""
        self.network = _sharing(lm)
        self._sources: dict[int, tuple[nn.Parameter, Any]] = {}
        """By the policy's weight or bias: its copy, and what gives its present value, (out, in) or (out,)."""
        for name, own in list(self.network.named_modules()):
            if matrix(own) is None:
                continue
            source = lm.get_submodule(name)
            own.weight = self._copy_of(_base(source).weight, own.weight.shape, dtype, source)
            if own.bias is not None and not isinstance(own, Fp32Head):  # which adds its bias in fp32
                own.bias = self._copy_of(own.bias, own.bias.shape, dtype, own.bias)

    def _copy_of(self, weight: Tensor, shape: torch.Size, dtype: torch.dtype, source: Any) -> nn.Parameter:
        if id(weight) not in self._sources:
            empty = torch.empty(shape, dtype=dtype, device=weight.device)
            self._sources[id(weight)] = nn.Parameter(empty, requires_grad=False), source
        return self._sources[id(weight)][0]

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring every copy up to date, in place. A map with an adapter needs room for one fp32 matrix meanwhile."""
        for own, source in self._sources.values():
            with torch.autocast(own.device.type, enabled=False):  # adapters are merged in fp32
                own.copy_(source if isinstance(source, Tensor) else _weight(source))

    @property
    def nbytes(self) -> int:
        """Memory of what is not shared with the policy."""
        return sum(own.nbytes for own, _ in self._sources.values())


def _sharing(lm: CausalLM) -> CausalLM:
    """The same modules again, with the very parameters and buffers of `lm`, but without its adapters and its hooks."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*lm.parameters(), *lm.buffers())}
    for module in lm.modules():
        hooks = [held for name, held in vars(module).items() if "hooks" in name and isinstance(held, dict)]
        memo |= {id(held): OrderedDict() for held in hooks}
        if (kept := vars(module).get("_copy")) is not None:  # of a head, in half precision: the copy has its own
            memo[id(kept)] = None
    for _, layer in adapter_layers(lm):
        base = layer.get_base_layer()
        memo[id(layer)] = _plain(base) if isinstance(base, QuantizedLinear) else copy.deepcopy(base, memo)
    return copy.deepcopy(lm, memo)


def _plain(base: QuantizedLinear) -> nn.Linear:
    """A map of the same size that is not quantised, without a weight."""
    linear = nn.Linear(base.in_features, base.out_features, bias=False, device="meta")
    linear.register_parameter("bias", base.bias)
    return linear.eval()


def _base(source: Any) -> Any:
    return source.get_base_layer() if hasattr(source, "get_base_layer") else source


def _weight(source: Any) -> Tensor:
    """The weight of a map as its module stores it, with what its adapter adds."""
    base = _base(source)
    weight: Tensor = base.full() if isinstance(base, QuantizedLinear) else base.weight
    # peft gives the difference as the base stores its weight, transposed or not.
    return weight if base is source else weight + source.get_delta_weight("default")
