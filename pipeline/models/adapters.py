"""Trained weights of a policy, and of a separate critic: all of them, or a low-rank adapter beside frozen ones.

With an adapter the reference is the same network with the adapter switched off: no second copy is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipeline.config.trial import TrialConfig
from pipeline.models.anatomy import trunk
from pipeline.models.loading import CausalLM
from pipeline.models.quantization import matrix, quantize
from pipeline.models.seeding import seed_of


def choose_trained(lm: CausalLM, cfg: TrialConfig) -> CausalLM:
    """Leave gradients on the policy's weights that `cfg` trains, and add its adapter where it has one; returns `lm`."""
    if cfg.adapter.kind == "lora":
        _add_lora(lm, cfg, seed_of(cfg.train.seed, "adapter"))
    return lm


def choose_trained_critic(body: CausalLM, cfg: TrialConfig, seed: int) -> CausalLM:
    """The same for the trunk of a separate critic, whose frozen weights `cfg` may hold in few bits; returns `body`.

    Raises `UserError` where bitsandbytes is needed and not installed.
    """
    if cfg.critic.adapter == "none":
        return body.requires_grad_(True)
    # On the CPU, as the policy is rounded, so that every device gets the same codes; the caller moves it back.
    quantize(body.cpu(), cfg.critic.quantize, "critic.quantize")
    _add_lora(body, cfg, seed_of(seed, "critic adapter"))
    return body


def _add_lora(network: CausalLM, cfg: TrialConfig, seed: int) -> None:
    """LoRA on every linear map of the blocks (Hu 2021, arXiv 2106.09685): W + (α / r) B A, with B zero at the start."""
    from peft import LoraConfig, inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    transposed = any(isinstance(module, Conv1D) for module in network.modules())
    size: dict[str, Any] = {"r": cfg.adapter.rank, "lora_alpha": cfg.adapter.alpha, "lora_dropout": 0.0}
    config = LoraConfig(**size, target_modules="all-linear", fan_in_fan_out=transposed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, network)


def adapter_layers(lm: CausalLM) -> Iterator[tuple[str, Any]]:
    """Name and module of every layer that carries an adapter."""
    if not any("lora_" in name for name, _ in lm.named_parameters()):
        return
    from peft.tuners.lora import LoraLayer

    for name, module in lm.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


@contextmanager
def adapter_off(lm: CausalLM) -> Iterator[None]:
    """The network without its adapter, for as long as the block lasts."""
    layers = [module for _, module in adapter_layers(lm)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
            # Switching on enables gradients of the active adapter only; frozen weights stay frozen.


class WithoutAdapter:
    """A policy's network seen without its adapter: the reference, at no memory of its own. Measures; is never sampled
    from."""

    base_model_prefix = "trunk"

    def __init__(self, lm: CausalLM) -> None:
        self.adapted, self.config = lm, lm.config

    def trunk(self, **inputs: Any) -> Any:
        """Hidden states of the bare network."""
        with adapter_off(self.adapted):
            return trunk(self.adapted)(**inputs)

    def get_output_embeddings(self) -> nn.Module:
        """The head, which carries no adapter."""
        head: nn.Module = self.adapted.get_output_embeddings()
        return head


def merged(lm: CausalLM, snapshot: CausalLM) -> CausalLM:
    """`snapshot` with what the adapter of `lm` learned added to its weights; `lm` itself where there is no adapter.

    `snapshot` is the fp32 network that training began from; of a quantised base, what its codes stand for
    (`pipeline.models.quantization.load_rounded`).
    """
    layers = dict(adapter_layers(lm))
    if not layers:
        return lm
    with torch.no_grad():
        for name, layer in layers.items():
            delta = layer.get_delta_weight("default")
            weight = matrix(snapshot.get_submodule(name))
            assert weight is not None
            weight += (delta.T if layer.fan_in_fan_out else delta).to(weight)
    return snapshot
