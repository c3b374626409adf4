"""One contender in a process of its own: builds, runs, and writes what the meter saw as JSON.

`python -m benchmarks.contender NAME SIZE DEVICE PRECISION THREADS FILE`
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

CONTENDERS = ("ours-grpo", "trl-grpo", "ours-rloo", "trl-rloo", "ours-shared", "ours-separate", "trl-ppo")
"""Algorithms without a critic, our PPO by its critic, and TRL's PPO with a separate one."""


def main(name: str, size_name: str, device_name: str, precision: str, threads: str, out: str) -> None:
    if device_name == "cuda":
        # TRL's own flag does not reach its accelerator under transformers 5; this does.
        os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    import torch

    torch.set_num_threads(int(threads))
    from benchmarks.meter import Meter
    from benchmarks.sizes import SIZES

    size, device = SIZES[size_name], torch.device(device_name)
    meter = Meter(device)
    with tempfile.TemporaryDirectory() as folder:
        build = import_module("benchmarks.ours" if name.startswith("ours") else "benchmarks.theirs").build
        build(size, name.partition("-")[2], device, precision, Path(folder), meter)()
    result = {"contender": name, "size": size_name, "device": device_name, "episodes": size.batch, **meter.result()}
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
