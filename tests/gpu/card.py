"""The card at hand, and how fast it multiplies and copies; `python -m gpu.card DEVICE` prints it as JSON."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

REQUIRED = ("accelerate", "filelock", "numpy", "pandas", "peft", "psutil", "pyarrow", "pydantic", "pytest",
            "safetensors", "tokenizers", "torch", "transformers", "PyYAML")  # fmt: skip
OPTIONAL = ("bitsandbytes", "datasets", "trl")
GIB = 2**30
LEAST_GIB = 14.0
"""A T4 reports 14.6."""
DATASHEET = {
    "T4": (65e12, 320e9),
    "V100-SXM": (125e12, 900e9),
    "A10G": (70e12, 600e9),
    "A10": (125e12, 600e9),
    "L4": (121e12, 300e9),
    "L40S": (362e12, 864e9),
    "A100-SXM4-40GB": (312e12, 1555e9),
    "A100-PCIE-40GB": (312e12, 1555e9),
    "A100 80GB PCIe": (312e12, 1935e9),
    "A100-SXM4-80GB": (312e12, 2039e9),
    "H100 PCIe": (756e12, 2000e9),
    "H100 80GB HBM3": (989e12, 3350e9),
    "H200": (989e12, 4800e9),
}
"""Peak of dense half-precision matrix products, FLOP/s, and memory bandwidth, bytes/s, by part of the card's name
(vendor's datasheets)."""


def missing() -> list[str]:
    """Packages that this program needs and does not find."""
    return [name for name in REQUIRED if find_spec({"PyYAML": "yaml"}.get(name, name)) is None]


def versions() -> dict[str, str]:
    """Of Python and of the packages; `not installed` where there is none."""
    found = {"python": platform.python_version()}
    for name in (*REQUIRED, *OPTIONAL):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def datasheet(name: str) -> tuple[float, float] | None:
    """FLOP/s in half precision and bytes/s; None for a card that the table lacks. The longest name that fits wins."""
    words = name.split()
    fits = [known for known in DATASHEET if known in name and (" " in known or "-" in known or known in words)]
    return DATASHEET[max(fits, key=len)] if fits else None


def describe(device: str) -> dict[str, Any]:
    """Name, memory, software and measured rates of the card (in a rehearsal, of the CPU); `why` it cannot be tested."""
    import torch

    found: dict[str, Any] = {"device": device, "name": "CPU", "cuda": torch.version.cuda, "why": ""}
    if device == "cuda":
        if not torch.cuda.is_available():
            return {"why": "no CUDA device is visible"}
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": properties.total_memory / GIB,
            "free_gib": torch.cuda.mem_get_info(0)[0] / GIB,
            "driver": _driver(),
        }
        if found["memory_gib"] < LEAST_GIB:
            found["why"] = f"{found['name']} has {found['memory_gib']:.1f} GiB; {LEAST_GIB:.0f} GiB are needed"
    large = device == "cuda"
    half = torch.bfloat16 if not large or torch.cuda.get_device_capability(0) >= (8, 0) else torch.float16
    size, count = (8192, 2**28) if large else (256, 2**20)
    a, one = torch.randn(size, size, device=device).to(half), torch.empty(count, device=device)
    other = torch.empty_like(one)
    found["half_flops"] = 2 * size**3 / _median_seconds(lambda: a @ a, large)
    found["copy_bytes"] = 8 * count / _median_seconds(lambda: other.copy_(one), large)
    return found


def _driver() -> str:
    """The driver's version, from nvidia-smi; `unknown` where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _median_seconds(work: Callable[[], Any], waits: bool) -> float:
    import torch

    spent = []
    for _ in range(13):
        before = time.perf_counter()
        work()
        if waits:
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - before)
    return sorted(spent[3:])[5]


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1])))
