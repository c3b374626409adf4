"""The precision that networks compute in, and the gradient steps that go with it: the one owner of mixed precision.

The device decides, and every stage of a trial computes alike. Trained weights are fp32 everywhere; half precision is
that of matrix products alone, and log-softmax is fp32.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from pipeline.errors import UserError
from pipeline.resources.machine import PRECISION as CHOICE
from pipeline.resources.machine import processor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-3, "bf16": 1e-1, "fp16": 3e-2}
"""Nats by which rounding alone moves a log-probability, by precision."""
ATTENTION = "sdpa"
"""FlashAttention-2 needs compute capability 8.0; torch's own kernels run everywhere."""
HOW = {"fp32": "fp32", "fp16": "fp16 autocast with a gradient scaler", "bf16": "bf16 autocast"}


def mixed_precision(device: torch.device) -> str:
    """The precision asked for by `CHOICE`, else what the card can do: bf16 from compute capability 8.0, fp16 below,
    fp32 on a CPU.

    A T4 has capability 7.5 and emulates bf16, which is slow. Raises `UserError` for an unknown name and for bf16 below
    8.0.
    """
    chosen = os.environ.get(CHOICE)
    native = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
    if not chosen:
        return "fp32" if device.type != "cuda" else "bf16" if native else "fp16"
    if chosen not in DTYPES:
        raise UserError(f"{CHOICE} = '{chosen}': must be one of {', '.join(DTYPES)}")
    if chosen == "bf16" and not native:
        raise UserError(f"{CHOICE} = 'bf16': this card's compute capability is below 8.0; use fp16 or fp32")
    return chosen


@dataclass(frozen=True)
class Precision:
    """The precision of one device."""

    device: torch.device
    name: str
    """``fp32``, ``fp16`` or ``bf16``."""

    @classmethod
    def of(cls, device: torch.device) -> Precision:
        return cls(device, mixed_precision(device))

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.name]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward; it changes nothing where everything is fp32."""
        return torch.autocast(self.device.type, dtype=DTYPES[self.name], enabled=self.name != "fp32")


class GradientSteps:
    """An optimiser and the loss scaling that fp16 needs: `scale` the loss, backward, `clip`, `step`.

    A scaled gradient may be thrown away at any time before `clip`, which unscales it; after `clip` comes `step`, since
    a scaler unscales once a step.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, precision: Precision) -> None:
        self.optimiser = optimiser
        if precision.device.type == "cpu":
            # Else the optimiser would ask a card whether it captures a graph, and that alone opens a CUDA context.
            for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
                if hasattr(optimiser, name):  # torch 2.13, and 2.11
                    setattr(optimiser, name, lambda: None)
        self.scaler = torch.amp.GradScaler(precision.device.type, enabled=precision.name == "fp16")

    def clear(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, or a weight of it, so large that fp16 keeps small gradients; as it is in any other precision."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def clip(self, groups: Iterable[Iterable[nn.Parameter]], max_norm: float) -> list[Tensor]:
        """Unscale all gradients, hold those of each group to the global norm `max_norm`; returns the norms before that,
        one () a group."""
        self.scaler.unscale_(self.optimiser)
        return [nn.utils.clip_grad_norm_(group, max_norm) for group in groups]

    @property
    def skips_overflows(self) -> bool:
        """True where `step` takes no step on a gradient that is not finite, and lowers the scale instead."""
        return bool(self.scaler.is_enabled())

    def step(self) -> None:
        """Take the step whose gradients have been clipped."""
        self.scaler.step(self.optimiser)
        self.scaler.update()
        # A fused optimiser does not count its step as a change of the weights; copies in half precision go by that
        # count.
        increment_version([parameter for group in self.optimiser.param_groups for parameter in group["params"]])

    def state(self) -> dict[str, Any]:
        return {"optimiser": self.optimiser.state_dict(), "scaler": self.scaler.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])


def execution(device: torch.device, threads: int, processes: int) -> dict[str, str]:
    """Describe the device and precision of a trial, with the reason, for its record and for display at its start."""
    name = mixed_precision(device)
    why, where = "no half precision on a CPU", "cpu"
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        where = f"{card.name}, {card.total_memory / 2**30:.1f} GiB"
        why = f"compute capability {card.major}.{card.minor}"
    if os.environ.get(CHOICE):
        why = f"asked for by {CHOICE}"
    setup = {"device": where, "precision": f"{HOW[name]} ({why})", "attention": ATTENTION, "threads": str(threads)}
    # Kernels are chosen by what the processor offers, and round differently; results repeat where these agree.
    setup |= {"processor": processor(), "instruction_set": torch.backends.cpu.get_cpu_capability()}
    return setup | ({"processes": str(processes)} if processes > 1 else {})
