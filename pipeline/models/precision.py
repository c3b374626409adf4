"""In which precision networks compute: chosen by what the device can do, and the same in every stage of a trial.

Weights that are trained are fp32 everywhere; half precision is that of matrix products alone, and log-softmax is fp32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ATTENTION = "sdpa"
"""FlashAttention-2 needs compute capability 8.0; torch's own kernels run everywhere."""


def mixed_precision(device: torch.device) -> str:
    """What the card can do: bf16 from compute capability 8.0, fp16 below (a T4 has no bf16), ``no`` on a CPU."""
    if device.type != "cuda":
        return "no"
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"


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
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability = f"{properties.major}.{properties.minor}"
        where = f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
        how = {
            "fp16": f"fp16 autocast with a gradient scaler (compute capability {capability}, below 8.0)",
            "bf16": f"bf16 autocast (compute capability {capability}, 8.0 or above)",
        }[name]
    else:
        where, how = "cpu", "fp32 (no half precision on a CPU)"
    found = {"device": where, "precision": how, "attention": ATTENTION, "threads": str(threads)}
    return found | ({"processes": str(processes)} if processes > 1 else {})
