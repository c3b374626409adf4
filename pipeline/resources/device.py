"""What can be said of this machine's GPU without torch, whose import takes longer than a command with nothing to do
should."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PRECISION = "ABLATE_PRECISION"
"""Environment variable that overrides the precision: ``fp32``, ``fp16`` or ``bf16``. Part of every stage's key, as any
precision."""
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}


def gpu_visible() -> bool:
    """Whether torch sees a CUDA device. Torch is asked only where it may: it was built for GPUs, and there is a
    driver."""
    if "torch" not in sys.modules and not _gpu_possible():
        return False
    import torch

    return torch.cuda.is_available()


def built_for_cards() -> bool:
    """Whether the installed torch can use a GPU, of whatever make; True where it does not say."""
    build = _build()
    return build is None or any(getattr(build, make, None) is not None for make in ("cuda", "hip"))


@lru_cache(maxsize=1)
def _gpu_possible() -> bool:
    if find_spec("torch") is None or not built_for_cards():
        return False
    return getattr(_build(), "cuda", None) is None or _loads(_DRIVERS.get(sys.platform))


@lru_cache(maxsize=1)
def _build() -> ModuleType | None:
    """What torch says of its build; None where it has no file that says so, and must be asked itself."""
    package = find_spec("torch")
    path = Path(package.origin).with_name("version.py") if package is not None and package.origin is not None else None
    spec = spec_from_file_location("_torch_version", path) if path is not None else None
    if spec is None or spec.loader is None:
        return None
    build = module_from_spec(spec)
    try:
        spec.loader.exec_module(build)
    except OSError:
        return None
    return build


def _loads(library: str | None) -> bool:
    """Whether the system has this library; True where its name is not known."""
    if library is None:
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def driver_version() -> int | None:
    """The CUDA that the loaded driver supports, 1000 x major + 10 x minor; None without a driver."""
    name = _DRIVERS.get(sys.platform)
    if name is None:
        return None
    found = ctypes.c_int()
    try:
        failed = ctypes.CDLL(name).cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if failed or not found.value else found.value
