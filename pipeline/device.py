"""What can be said of this machine's GPU without torch, whose import takes longer than a command with nothing to do should."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

PRECISION = "ABLATE_PRECISION"
"""Environment variable that overrides the precision: ``fp32``, ``fp16`` or ``bf16``. Part of every stage's key, as any precision."""
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}


def gpu_visible() -> bool:
    """Whether torch sees a CUDA device. Torch is asked only where it may: it was built for GPUs, and there is a driver."""
    if "torch" not in sys.modules and not _gpu_possible():
        return False
    import torch

    return torch.cuda.is_available()


@lru_cache(maxsize=1)
def _gpu_possible() -> bool:
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    spec = spec_from_file_location("_torch_version", Path(found.origin).with_name("version.py"))
    if spec is None or spec.loader is None:
        return True
    build = module_from_spec(spec)
    with suppress(OSError):  # a torch without this file has to be asked
        spec.loader.exec_module(build)
        if getattr(build, "cuda", None) is None and getattr(build, "hip", None) is None:
            return False
        if getattr(build, "cuda", None) is not None:
            return _loads(_DRIVERS.get(sys.platform))
    return True


def _loads(library: str | None) -> bool:
    """Whether the system has this library; True where its name is not known."""
    if library is None:
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
