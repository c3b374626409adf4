"""The card at hand: what it is, and how fast it multiplies and copies. `python -m gpu.card` prints it as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

REQUIRED = {
    "accelerate": "accelerate",
    "filelock": "filelock",
    "numpy": "numpy",
    "pandas": "pandas",
    "peft": "peft",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pytest": "pytest",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
    "yaml": "PyYAML",
}
"""Modules without which nothing here runs, and the packages that hold them."""
OPTIONAL = ("bitsandbytes", "datasets", "trl")
GIB = 2**30
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
    return [package for module, package in REQUIRED.items() if find_spec(module) is None]


def versions() -> dict[str, str]:
    """Of Python and of the packages; `not installed` where there is none."""
    found = {"python": platform.python_version()}
    for name in (*sorted(REQUIRED.values(), key=str.lower), *OPTIONAL):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def datasheet(name: str) -> tuple[float, float] | None:
    """FLOP/s in half precision and bytes/s; None for a card that the table lacks. The longest name that fits wins.

    >>> datasheet("NVIDIA A100-SXM4-80GB")
    (312000000000000.0, 2039000000000.0)
    >>> datasheet("Tesla T4")
    (65000000000000.0, 320000000000.0)
    >>> datasheet("NVIDIA T400") is None
    True
    """
    words = name.split()
    fits = [known for known in DATASHEET if known in name and (" " in known or "-" in known or known in words)]
    return DATASHEET[max(fits, key=len)] if fits else None


def describe(device: str) -> dict[str, Any]:
    """Name, memory, software and measured rates of the card (or, in a rehearsal, of the CPU)."""
    import torch

    found: dict[str, Any] = {
        "device": device,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": properties.total_memory / GIB,
            "free_gib": torch.cuda.mem_get_info(0)[0] / GIB,
            "driver": _driver(),
        }
    else:
        found |= {"name": "CPU", "count": 0, "capability": "", "memory_gib": 0.0, "free_gib": 0.0, "driver": ""}
    return found | {"half_flops": _products(device), "copy_bytes": _copies(device)}


def _driver() -> str:
    """The driver's version, from nvidia-smi; `unknown` where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
            .stdout.splitlines()[0]
            .strip()
        )
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _products(device: str) -> float:
    """Half-precision matrix products, FLOP/s: the median of ten; bf16 where the card has it."""
    import torch

    native = device == "cpu" or torch.cuda.get_device_capability(0) >= (8, 0)
    size = 8192 if device == "cuda" else 256
    a = torch.randn(size, size, device=device).to(torch.bfloat16 if native else torch.float16)
    return 2 * size**3 / _median_seconds(lambda: a @ a, device)


def _copies(device: str) -> float:
    """Copies within the memory, bytes read and written a second: the median of ten."""
    import torch

    one = torch.empty(2**28 if device == "cuda" else 2**20, device=device)
    other = torch.empty_like(one)
    return 8 * one.numel() / _median_seconds(lambda: other.copy_(one), device)


def _median_seconds(work: Callable[[], Any], device: str) -> float:
    import torch

    spent = []
    for _ in range(13):
        before = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - before)
    return sorted(spent[3:])[5]


if __name__ == "__main__":
    import sys

    print(json.dumps(describe(sys.argv[1])))
