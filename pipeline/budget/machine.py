"""What a process takes of its machine's memory: high-water marks, and the cap that an allocator can hold."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

GIB = 2**30
PROC = Path("/proc/self")


def peak_gib() -> float:
    """High-water mark: of the CUDA allocator where one is in use, else of the process's resident set; GiB."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated()) / GIB
    return _peak_resident() / GIB


def fresh_marks() -> None:
    """Start the high-water marks afresh."""
    with suppress(OSError):  # where the system offers no reset, the mark is that of the process so far
        (PROC / "clear_refs").write_text("5")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def hold_allocator(max_gib: float) -> None:
    """Hold the CUDA allocator to `max_gib` on a card of any size, for the rest of this process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(max_gib * GIB / total, 1.0))


def _peak_resident() -> float:
    """Bytes. Linux's own mark can be reset; that of getrusage also knows the program that started this one."""
    with suppress(OSError):
        for line in (PROC / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    with suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
    import psutil

    memory = psutil.Process().memory_info()
    return float(getattr(memory, "peak_wset", memory.rss))
