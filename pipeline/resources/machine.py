"""The machine that a process runs on: its processor, GPUs, memory marks, cap of an allocator, optional packages.

A process that computes on the CPU must not touch a card: the context alone would take some 300 MiB of it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import UserError

PRECISION = "ABLATE_PRECISION"
"""Environment variable that overrides the precision: ``fp32``, ``fp16`` or ``bf16``. Part of every stage's key, as any
precision."""
GIB = 2**30
PROC = Path("/proc/self")
CPUINFO = Path("/proc/cpuinfo")
MALLOC = {
    "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={2**22}:glibc.malloc.trim_threshold={2**26}"
}
"""Environment of processes that train on a CPU, read by glibc when a process begins.

Tensors lie on pages of 2 MiB, which most kernels give on request: fewer pages are looked up faster, some 5 to 10 % of a
trial's time. Freed memory is used again, where glibc would hand it back and fault in fresh pages; only tensors from
4 MiB on have pages of their own, as the holes of large ones would fragment the heap.
"""
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Both are read by torch 2.11 to 2.13; the second one, the older name, wins where both are set."""


def grow_segments() -> None:
    """Have the CUDA allocator of this process and its children grow its segments instead of adding to them.

    Batches of changing length leave holes that no later batch fits into. Takes effect until CUDA is first used; a
    setting of the user's stays as it is. CUDA offers this on Linux.
    """
    if sys.platform == "linux" and not any(name in os.environ for name in ALLOCATOR_SETTINGS):
        os.environ[ALLOCATOR_SETTINGS[0]] = "expandable_segments:True"


def processor() -> str:
    """Model of this machine's CPU; ``unknown`` where the system does not name it."""
    with suppress(OSError):
        for line in CPUINFO.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or "unknown"


def gpu_visible() -> bool:
    """Return whether torch has a CUDA device. Torch, whose import takes longer than a short command, is imported only
    where the driver loads."""
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


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` would name them; opens no CUDA context."""
    if not gpu_visible():
        return []
    import torch

    count = torch.cuda.device_count()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [gpu.strip() for gpu in listed.split(",")][:count] if listed else [str(index) for index in range(count)]


def peak_gib(on_card: bool = False) -> float:
    """High-water mark in GiB: of the CUDA allocator on a card, else of the process's resident set."""
    if on_card:
        import torch

        return float(torch.cuda.max_memory_allocated()) / GIB
    with suppress(
        OSError
    ):  # Linux's own mark can be reset; that of getrusage includes the program that started this one
        for line in (PROC / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / GIB


def fresh_marks(on_card: bool = False) -> None:
    """Start the high-water marks afresh."""
    with suppress(OSError):  # where the system offers no reset, the mark is that of the process so far
        (PROC / "clear_refs").write_text("5")
    if on_card:
        import torch

        torch.cuda.reset_peak_memory_stats()


def hold_allocator(max_gib: float) -> None:
    """Hold the CUDA allocator to `max_gib` on a card of any size, for the rest of this process, which must use a
    card."""
    import torch

    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(max_gib * GIB / total, 1.0))


EXTRAS = {"ocr": ("rapidocr", "onnxruntime", "PIL"), "quantize": ("bitsandbytes",)}
"""Packages of each extra, as imported."""


def check_extra(setting: str, extra: str) -> None:
    """Raise `UserError` where packages of an extra are missing, which a setting such as ``reward.kind = 'ocr'``
    needs."""
    if missing := [package for package in EXTRAS[extra] if find_spec(package) is None]:
        raise UserError(
            f"{setting}: not installed: {', '.join(missing)}; install the extra (pip install -e '.[{extra}]'), or use"
            " another value"
        )
