"""Our trainer and TRL's, one after the other on the same card, through the harness of `make bench`.

`python -m gpu.beside_trl FILE` appends JSON lines to FILE.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu.card import GIB

NAME = "beside TRL 1.12 PPO"
ROOMY_GIB = 60.0
"""From here on both fit with the shape of Qwen1.5-0.5B: TRL trains a policy and a critic of that size."""
SECONDS = 80


def main(out: Path) -> None:
    """Run each contender in a process of its own."""
    lacking = [name for name in ("trl", "datasets") if find_spec(name) is None]
    if lacking or os.environ["GPU_DEVICE"] != "cuda":
        _write(
            out,
            {
                "name": NAME,
                "status": "not tested",
                "why": f"not installed: {', '.join(lacking)}" if lacking else "no CUDA device",
            },
        )
        return
    import torch

    properties = torch.cuda.get_device_properties(0)
    size = "qwen0.5b" if properties.total_memory > ROOMY_GIB * GIB else "32k"
    precision = "bf16" if properties.major >= 8 else "fp16"
    lines = [_line(contender, size, precision) for contender in ("ours-shared", "ours-separate", "trl")]
    speeds = {line["contender"]: line["episodes_per_s"] for line in lines}
    note = f"size {size} of tests/benchmarks, {precision}, one process after the other, all responses at full length"
    _write(out, {"beside_trl": lines, "notes": [note]})
    ratios = {
        f"{name} against trl, episodes/s": f"{speeds[name] / speeds['trl']:.2f} x"
        for name in ("ours-shared", "ours-separate")
    }
    _write(out, {"name": NAME, "status": "passed", "values": ratios})


def _line(contender: str, size: str, precision: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = [contender, size, "cuda", precision, "1", str(result)]
        subprocess.run([sys.executable, "-m", "benchmarks.contender", *words], check=True, timeout=SECONDS)
        found = json.loads(result.read_text())
    seconds = statistics.median(sum(update["wall"].values()) for update in found["updates"])
    return {
        "contender": contender,
        "seconds": seconds,
        "episodes_per_s": found["episodes"] / seconds,
        "peak_gib": found["peak_bytes"] / GIB,
        "n": len(found["updates"]),
    }


def _write(out: Path, line: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
