"""One contender in a process of its own: builds, runs, and writes what the meter saw as JSON.

`python -m benchmarks.contender NAME SIZE DEVICE PRECISION THREADS FILE`
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

CONTENDERS = ("ours-grpo", "ours-rloo", "ours-shared", "ours-separate", "trl-ppo", "trl-grpo", "trl-rloo")
"""Our algorithms without a critic, our PPO by its critic, TRL's PPO with a separate one, and what needs a newer TRL."""
NEWER_TRL = ("trl-grpo", "trl-rloo")


def main(name: str, size_name: str, device_name: str, precision: str, threads: str, out: str) -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if device_name == "cuda":
        # TRL's own flag does not reach its accelerator under transformers 5; this does.
        os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    import torch

    torch.set_num_threads(int(threads))
    from benchmarks.meter import Meter, matrix_peak, memory_now
    from benchmarks.sizes import SIZES

    size, device = SIZES[size_name], torch.device(device_name)
    meter = Meter(device, size.measured)
    with tempfile.TemporaryDirectory() as folder:
        if name == "trl-ppo":
            from benchmarks import theirs

            run = theirs.build(size, device, Path(folder), meter)
        elif name in NEWER_TRL:
            from benchmarks import their_groups

            run = their_groups.build(size, name.removeprefix("trl-"), device, Path(folder), meter)
        else:
            from benchmarks import ours

            run = ours.build(size, name.removeprefix("ours-"), device, precision, Path(folder), meter)
        built = memory_now(device)
        start = time.perf_counter()
        run()
        wall = time.perf_counter() - start
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    result = meter.result() | {
        "contender": name,
        "trl": version("trl") if name.startswith("trl") else None,
        "size": size_name,
        "device": device_name,
        "built_bytes": built,
        "matrix_peak": matrix_peak(device, dtype),
        "threads": torch.get_num_threads(),
        "episodes": size.batch,
        "wall_s": wall,
        "parameters": sum(p.numel() for p in size.network().parameters()),
    }
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
