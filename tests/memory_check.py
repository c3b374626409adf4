"""Peak memory of whole trials on a CPU, each measured in a process of its own, beside its forecast.

PYTHONPATH=tests:. python tests/memory_check.py [size ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from helpers import random_base

from pipeline.config.loading import load_config
from pipeline.forecast.advice import predict

COMMON = {
    "data.sft_texts": 2000, "data.train_prompts": 64, "data.heldout_prompts": 8, "evaluate.prompts": 8,
    "sft.steps": 2, "sft.batch_size": 16, "reward.learned.pairs": 32, "reward.learned.heldout_pairs": 8,
    "reward.calibration_samples": 32, "reward.learned.epochs": 2, "reward.learned.batch_size": 32, "train.steps": 2,
    "train.batch_size": 32, "train.num_mini_batches": 2, "train.num_epochs": 1, "train.response_length": 32,
    "optimiser.lr": 1e-6, "optimiser.guard": False, "runtime.micro_batch_size": 16, "runtime.rollout_batch_size": 32,
}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "vocab_size": 32_000, "tie_word_embeddings": True, "max_position_embeddings": 512}
FOUR, EIGHT = ({"num_attention_heads": heads, "num_key_value_heads": heads} for heads in (4, 8))
SMALL = {**QWEN2, **FOUR, "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 704}
LARGE = {**QWEN2, **EIGHT, "hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1408}
GPT2 = {"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 512, "n_layer": 9, "n_head": 8, "n_positions": 512,
        "tie_word_embeddings": True}  # fmt: skip
WIDE = {"runtime.micro_batch_size": 32, "train.batch_size": 64, "runtime.rollout_batch_size": 64}
SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "10M": (SMALL, {}),
    "10M-separate": (SMALL, {"critic.kind": "separate"}),
    "10M-lora": (SMALL, {"adapter.kind": "lora"}),
    "42M": (LARGE, {}),
    "42M-recomputed": (LARGE, {"runtime.gradient_checkpointing": True}),
    "42M-wide-batch": (LARGE, WIDE),
    "gpt2-56M": (GPT2, {}),
}


def measure(name: str, root: Path) -> dict[str, tuple[float, float]]:
    """(predicted, measured) peak of each stage, GiB; the trial runs through the same commands as any other."""
    sizes, changes = SIZES[name]
    random_base(root / "base", sizes)
    settings = {**COMMON, **changes, "model.base": str(root / "base")}
    command = [sys.executable, "-m", "ablate", "run", "--profile", "tiny", "--out", str(root / "out")]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = predict(load_config("tiny", settings))
    peaks = {}
    for stage, components in found.stages.items():
        cost = json.loads(next((root / "out" / "store" / stage).glob("*/log/cost.json")).read_text())
        peaks[stage] = found.peaks[stage], cost["peak_memory_gib"]
        print("   ", stage, {key: round(size, 2) for key, size in components.items()}, flush=True)
    return peaks


if __name__ == "__main__":
    for one in sys.argv[1:] or SIZES:
        with tempfile.TemporaryDirectory() as place:
            for stage, (predicted, measured) in measure(one, Path(place)).items():
                percent = f"{100 * (predicted / measured - 1):+.0f} %"
                figures = f"predicted {predicted:.2f} GiB, measured {measured:.2f} GiB, {percent}"
                print(f"{one:16s} {stage:9s} {figures}", flush=True)
