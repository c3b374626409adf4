"""Counts the work of networks while they run, by hooks on whole networks: a call costs an addition, not one per layer.

Counted is what a network executes: the trunk on every position it is given, padding included, the head on the
tokens that reach it; matrix products and attention, each a multiplication and an addition. A backward is counted
with the forward it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from pipeline.models.adapters import adapter_layers, weights
from pipeline.models.trunk import CausalLM, blocks_of, recomputes, trunk
from pipeline.resources import ledger

Tally = Callable[[float, float], None]
"""Takes FLOPs and bytes."""
ADAPTER = {"lora_A", "lora_B"}


@dataclass(frozen=True)
class _LinearMap:
    block: int
    name: str
    """Within its block."""
    inputs: int
    outputs: int
    trained: bool

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


def linear_maps(network: CausalLM) -> list[_LinearMap]:
    """Every linear map in the blocks of a trunk, adapters included, lowest first."""
    found = []
    for index, block in enumerate(blocks_of(network)):
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear):  # a quantised one as well
                sizes = module.in_features, module.out_features
            elif type(module).__name__ == "Conv1D":  # of transformers: a linear map with its weight transposed
                sizes = tuple(module.weight.shape)
            else:
                continue
            found.append(_LinearMap(index, name, *sizes, module.weight.requires_grad))
    return found


def attention_width(config: Any) -> int:
    """Width of all attention heads together; 0 where a configuration has none."""
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(heads, 1)
    return int(heads * size)


def cached_numbers(config: Any) -> int:
    """Keys and values of one position, over all layers."""
    heads = getattr(config, "num_attention_heads", 0)
    groups = getattr(config, "num_key_value_heads", None) or heads
    return 2 * getattr(config, "num_hidden_layers", 0) * attention_width(config) * groups // max(heads, 1)


class _TrunkMeter:
    def __init__(self, network: CausalLM, tally: Tally) -> None:
        self._tally, self._block = tally, blocks_of(network)[0]
        maps = linear_maps(network)
        self._adapters = [layer for _, layer in adapter_layers(network)][:1]
        self._bare = sum(linear.weights for linear in maps if not set(linear.name.split(".")) & ADAPTER)
        self._forward = sum(linear.weights for linear in maps)
        # Computing a block again ends before its last map: nothing in the backward needs what that one gives.
        self._again = self._forward - sum({linear.block: linear.weights for linear in maps}.values())
        # Of those that a backward multiplies by: every block has something that is trained, or none has.
        self._backward = sum(linear.weights * (1 + linear.trained) for linear in maps)
        # What is left out of a packed call where nobody reads (`pipeline.models.trunk`).
        ending = [one for one in maps if one.block == maps[-1].block and one.name.startswith("mlp.")]
        self._ending = sum(one.weights for one in ending)
        self._ending_backward = sum(one.weights * (1 + one.trained) for one in ending)
        self._attention = attention_width(network.config)
        self._layers = int(getattr(network.config, "num_hidden_layers", 0))
        self._cache = cached_numbers(network.config)
        parameters = [parameter for block in blocks_of(network) for parameter in block.parameters()]
        self._trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        self._frozen = sum(weights(parameter) for parameter in parameters) - self._trained
        trunk(network).register_forward_pre_hook(_uncompiled(self._on_call), with_kwargs=True)

    def _on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids: Tensor | None = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            return
        rows, new = ids.shape
        mask, packing = kwargs.get("attention_mask"), kwargs.get("packing")
        keys = mask.shape[-1] if isinstance(mask, Tensor) and packing is None else new
        tokens = rows * new
        pairs = 4.0 * self._attention * (tokens * keys if packing is None else packing.rows * packing.width**2)
        bare = bool(self._adapters) and self._adapters[0].disable_adapters
        again = recomputes(self._block)
        unread = 0 if packing is None or again else tokens - len(packing.read)
        flops = 2.0 * (tokens * (self._bare if bare else self._forward) - unread * self._ending) + pairs * self._layers
        bytes_ = float(rows * keys * self._cache * ledger.BYTES_CACHE) if keys > new else 0.0
        if torch.is_grad_enabled() and self._trained:
            if again:
                flops += 2.0 * tokens * self._again + pairs * self._layers
            flops += 2.0 * (tokens * self._backward - unread * self._ending_backward) + 2 * pairs * self._layers
            bytes_ += self._trained * (
                ledger.BYTES_READ_CAST + ledger.BYTES_BACKWARD + ledger.BYTES_GRADIENT
            ) + self._frozen * (ledger.BYTES_READ_CAST + ledger.BYTES_BACKWARD)
        else:
            bytes_ += self._trained * ledger.BYTES_READ_HALF + self._frozen * ledger.BYTES_READ_CAST
        self._tally(flops * _times(), bytes_)


def _times() -> int:
    """Return how often a product counts: with tangents 3 times, as each W x comes with W dx and dW x."""
    with_tangents = forward_ad._current_level >= 0 and not torch.is_grad_enabled()
    return 3 if with_tangents else 1


def _head_hook(trained: bool, tally: Tally) -> Callable[[Any, tuple[Any, ...]], None]:
    reads = ledger.BYTES_READ_HALF if trained else ledger.BYTES_READ_CAST
    goes_back = reads + ledger.BYTES_BACKWARD + ledger.BYTES_HEAD_GRADIENT * trained

    def on_call(head: Any, args: tuple[Any, ...]) -> None:
        backward = torch.is_grad_enabled() and args[0].requires_grad
        weights, tokens = head.weight.numel(), args[0].numel() // args[0].shape[-1]
        logits = tokens * head.weight.shape[0] * ledger.BYTES_LOGIT
        if backward:
            tally(2.0 * tokens * weights * (2 + trained), float(weights * goes_back + 2 * logits))
        else:
            tally(2.0 * tokens * weights * _times(), float(weights * reads + logits))

    return on_call


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that is called from within compiled code, or the sums would be part of its graph."""
    outside: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return outside


def meter(networks: Iterable[CausalLM], tally: Tally) -> None:
    """Count every call of these networks from here on; one that is named twice is counted once."""
    for network in {id(lm): lm for lm in networks}.values():
        _TrunkMeter(network, tally)
        head = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
        if isinstance(head, nn.Linear):
            head.register_forward_pre_hook(_uncompiled(_head_hook(bool(head.weight.requires_grad), tally)))
