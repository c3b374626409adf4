"""Trained weights of a policy, and of a separate critic: all of them, or a low-rank adapter beside frozen ones, which
may be held in 8 or 4 bits by bitsandbytes.

With an adapter the reference is the same network with the adapter switched off: no second copy is in memory.

Of frozen maps only the weights are rounded. They are expanded for every product, forward and backward, to the precision
that the product has anyway: so a rollout and a training step use one network, however the rows are cut. The modules of
bitsandbytes itself do not keep to that: in evaluation mode, in which networks are here throughout, its int8 map rounds
its inputs too, and its NF4 map computes in bf16 on some CPUs where no gradient is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.config.trial import TrialConfig
from pipeline.models.loading import freeze, load_snapshot
from pipeline.models.seeding import seed_of
from pipeline.models.trunk import CausalLM, blocks_of, trunk
from pipeline.resources.machine import check_extra


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


class WithoutAdapter:
    """A policy's network seen without its adapter: the reference, at no memory of its own. Measures; is never sampled
    from."""

    base_model_prefix = "trunk"

    def __init__(self, lm: CausalLM) -> None:
        self.adapted, self.config = lm, lm.config

    def trunk(self, **inputs: Any) -> Any:
        layers = [module for _, module in adapter_layers(self.adapted)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            return trunk(self.adapted)(**inputs)
        finally:
            for layer in layers:
                # Enables gradients of the active adapter only; frozen weights stay frozen.
                layer.enable_adapters(True)

    def get_output_embeddings(self) -> nn.Module:
        head: nn.Module = self.adapted.get_output_embeddings()
        return head


def merged(lm: CausalLM, snapshot: CausalLM) -> CausalLM:
    """`snapshot` with what the adapter of `lm` learned added to its weights; `lm` itself where there is no adapter.

    `snapshot` is the fp32 network that training began from; of a quantised base, what its codes stand for
    (`pipeline.models.adapters.load_rounded`).
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


Quantize = Literal["none", "8bit", "4bit"]
BLOCK, OUTER_BLOCK = 64, 256
"""Weights that share a scale in NF4, and scales that share one of their own."""
# On some CPUs it remarks, once imported, on a kernel of its that is not installed and that is not used here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


class QuantizedLinear(nn.Linear):
    """A frozen linear map whose weight is held in few bits. `weight` are the codes; they are no weights to compute
    with.

    8 bits: int8, with a scale for each output (LLM.int8(): Dettmers 2022, arXiv 2208.07339, section 2.1). 4 bits: NF4,
    the scales of its blocks in 8 bits (QLoRA: Dettmers 2023, arXiv 2305.14314, section 3).
    """

    scale: Tensor
    """Scale of the codes of each output; in 4 bits of the codes of the blocks' scales, which are `absmax`."""
    absmax: Tensor
    offset: Tensor
    """Mean of the blocks' scales."""

    def __init__(self, weight: Tensor, bias: nn.Parameter | None, how: Quantize) -> None:
        """weight (out, in) fp32."""
        from bitsandbytes.functional import int8_vectorwise_quant, quantize_4bit

        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().contiguous()
        if how == "8bit":
            codes, largest, _ = int8_vectorwise_quant(weight.half())
            buffers = {"scale": largest.float() / 127}
        else:
            codes, state = quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
            buffers = {"absmax": state.absmax, "scale": state.state2.absmax, "offset": state.offset}
        self.weight = nn.Parameter(codes, requires_grad=False)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.register_parameter("bias", bias)

    def full(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight (out, in) that the codes stand for."""
        from bitsandbytes.functional import QuantState, dequantize_4bit, dequantize_blockwise

        if self.weight.dtype == torch.int8:
            return (self.weight * self.scale[:, None]).to(dtype)
        scales = dequantize_blockwise(self.absmax, absmax=self.scale, blocksize=OUTER_BLOCK) + self.offset
        # As one long row: on a CPU, bitsandbytes 0.50 mistakes the scales of rows that are no multiple of a block.
        row = torch.Size((1, self.out_features * self.in_features))
        state = QuantState(scales, shape=row, blocksize=BLOCK, quant_type="nf4", dtype=dtype)
        weight: Tensor = dequantize_4bit(self.weight.data, state).view(self.out_features, self.in_features)
        return weight

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, torch's name
        """The product in the precision of autocast, else in that of the input."""
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        output: Tensor = _Product.apply(input, self, dtype)  # type: ignore[no-untyped-call]
        return output


class _Product(torch.autograd.Function):
    """A frozen map of (..., in). Its weight is expanded a second time for the backward rather than kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear, dtype: torch.dtype) -> Tensor:
        ctx.layer, ctx.dtype = layer, dtype
        ctx.x_dtype = x.dtype
        bias = None if layer.bias is None else layer.bias.to(dtype)
        return nn.functional.linear(x.to(dtype), layer.full(dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (gradients[0].to(ctx.dtype) @ ctx.layer.full(ctx.dtype)).to(ctx.x_dtype), None, None


def quantize(network: CausalLM, how: Quantize, key: str) -> CausalLM:
    """Hold every linear map in the blocks of a network in few bits, in place, and freeze the network; returns it.

    The rest keeps its precision. `key` names the setting in the message of the `UserError` where bitsandbytes is not
    installed.
    """
    if how == "none":
        return network
    check_extra(f"{key} = '{how}'", "quantize")
    for parent, name, weight in list(_maps(network)):
        setattr(parent, name, QuantizedLinear(weight, getattr(parent, name).bias, how))
    return freeze(network)


def matrix(module: Any) -> Tensor | None:
    """The weight (out, in) of a linear map; None for any other module."""
    if isinstance(module, nn.Linear):
        return module.weight
    transposed = type(module).__name__ == "Conv1D"  # of transformers
    return module.weight.T if transposed else None


def weights(parameter: Tensor) -> int:
    """Return the number of weights that a parameter holds: codes in 4 bits are two to a byte."""
    return parameter.numel() * (2 if parameter.dtype == torch.uint8 else 1)


def _maps(network: CausalLM) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Every linear map in the blocks of a network: the module that it is a child of, its name there, its weight."""
    for block in blocks_of(network):
        for parent in block.modules():
            for name, child in parent.named_children():
                if (weight := matrix(child)) is not None:
                    yield parent, name, weight


def load_quantized(path: Path, how: Quantize, device: torch.device, key: str) -> CausalLM:
    """One of our own `save_pretrained` folders, its linear maps in few bits.

    They are rounded on the CPU, so that every device gets the same. Raises `UserError` without bitsandbytes.
    """
    if how == "none":
        return load_snapshot(path, device)
    return quantize(load_snapshot(path, torch.device("cpu")), how, key).to(device)


@torch.no_grad()
def load_rounded(path: Path, how: Quantize, device: torch.device, key: str) -> CausalLM:
    """The same as a plain network in fp32: each weight of a linear map is what its code in few bits stands for."""
    if how == "none":
        return load_snapshot(path, device)
    check_extra(f"{key} = '{how}'", "quantize")
    model = load_snapshot(path, torch.device("cpu"))
    for _, _, weight in _maps(model):
        weight.copy_(QuantizedLinear(weight, None, how).full())
    return model.to(device)
