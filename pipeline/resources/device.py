"""Visibility of a GPU, found without torch where there is no driver: its import takes longer than a short command."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

PRECISION = "ABLATE_PRECISION"
"""Environment variable that overrides the precision: ``fp32``, ``fp16`` or ``bf16``. Part of every stage's key, as any
precision."""


def gpu_visible() -> bool:
    """Return whether torch has a CUDA device. Torch is imported only where the driver loads."""
    if "torch" not in sys.modules and not _driver_loads():
        return False
    import torch

    return torch.cuda.is_available()


@lru_cache(maxsize=1)
def _driver_loads() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
