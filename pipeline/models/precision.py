"""In which precision networks compute: chosen by what the device can do, and the same in every stage of a trial.

Weights that are trained are fp32 everywhere; half precision is that of matrix products alone, and log-softmax is fp32.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.errors import UserError

DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ATTENTION = "sdpa"
"""FlashAttention-2 needs compute capability 8.0; torch's own kernels run everywhere."""
CHOICE = "ABLATE_PRECISION"
"""Environment variable that overrides the precision: ``fp32``, ``fp16`` or ``bf16``. Part of every stage's key, as any precision."""
HOW = {"no": "fp32", "fp16": "fp16 autocast with a gradient scaler", "bf16": "bf16 autocast"}
NAMES = {"fp32": "no", "fp16": "fp16", "bf16": "bf16"}


def mixed_precision(device: torch.device) -> str:
    """The precision asked for by `CHOICE`, else what the card can do: bf16 from compute capability 8.0, fp16 below, ``no`` on a CPU.

    A T4 has capability 7.5 and emulates bf16, which is slow. Raises `UserError` for an unknown name and for bf16 below 8.0.
    """
    chosen = os.environ.get(CHOICE)
    native = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
    if not chosen:
        return "no" if device.type != "cuda" else "bf16" if native else "fp16"
    if chosen not in NAMES:
        raise UserError(f"{CHOICE} = '{chosen}': must be one of {', '.join(NAMES)}")
    if chosen == "bf16" and not native:
        raise UserError(f"{CHOICE} = 'bf16': this card's compute capability is below 8.0; use fp16 or fp32")
    return NAMES[chosen]


@dataclass(frozen=True)
class Precision:
    """The precision of one device."""

    device: torch.device
    name: str
    """``no``, ``fp16`` or ``bf16``, as accelerate calls them."""

    @classmethod
    def of(cls, device: torch.device) -> Precision:
        return cls(device, mixed_precision(device))

    def autocast(self) -> AbstractContextManager[Any]:
        """For forwards; nothing where everything is fp32."""
        return torch.autocast(self.device.type, dtype=DTYPES[self.name], enabled=self.name != "no")

    def scaler(self) -> torch.amp.GradScaler:
        """Keeps small gradients from vanishing in fp16; does nothing in the other precisions."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def execution(device: torch.device, threads: int, processes: int) -> dict[str, str]:
    """With what a trial computes, and why so: for its record, and to be shown when it starts."""
    name = mixed_precision(device)
    why, where = "no half precision on a CPU", "cpu"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        where = f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
        side = "8.0 or above" if (properties.major, properties.minor) >= (8, 0) else "below 8.0"
        why = f"compute capability {properties.major}.{properties.minor}, {side}"
    if os.environ.get(CHOICE):
        why = f"asked for by {CHOICE}"
    how = f"{HOW[name]} ({why})"
    found = {"device": where, "precision": how, "attention": ATTENTION, "threads": str(threads)}
    return found | ({"processes": str(processes)} if processes > 1 else {})
