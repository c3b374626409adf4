"""`make bench`: ours beside TRL, in one run, interleaved; a table to read and a JSON file to keep.

Each contender runs in a fresh process, round after round in turn, so that whatever else the machine does falls on all
of them. A ratio is taken within a round; what is printed is the median over the rounds, with the least and the
greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contender import CONTENDERS
from benchmarks.report import show

from pipeline.resources.machine import MALLOC

ROOT = Path(__file__).parents[2]


def main() -> None:
    options = _options()
    turns = [(size, name) for size in options.size for _ in range(options.rounds) for name in options.contender]
    runs = [_run(name, size, options) for size, name in turns]
    show(runs)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("device", "precision", "threads", "rounds")}
    options.out.write_text(json.dumps({**settings, "runs": runs}, indent=1))
    print(f"\n{options.out}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--size", nargs="+", default=["tiny", "32k"], choices=["smoke", "tiny", "32k", "qwen0.5b"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a contender; a trial has 1 by default")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16", "bf16"], help="of autocast, on a GPU")
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--out", type=Path, default=Path("outputs/bench.json"))
    options = parser.parse_args()
    if (options.device == "cpu") != (options.precision == "fp32"):
        parser.error("--precision is fp16 or bf16 with --device cuda, and not given without")
    return options


def _run(name: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    """One contender in a fresh process; its output is shown only when it fails."""
    print(f"{time.strftime('%H:%M:%S')} {size} {name}", file=sys.stderr)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": str(options.threads)}
    environment |= {"TOKENIZERS_PARALLELISM": "false"}
    if name.startswith("ours"):
        environment |= MALLOC  # as the processes of our trials have them
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        words = [name, size, options.device, options.precision, str(options.threads), str(out)]
        command = [sys.executable, "-m", "benchmarks.contender", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} at {size} failed:\n{done.stderr[-4000:]}")
        result: dict[str, Any] = json.loads(out.read_text())
        return result


if __name__ == "__main__":
    main()
