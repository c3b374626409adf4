"""Predicted against measured peak memory of whole trials on a CPU, each in a process of its own.

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

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.forecast.advice import predict

COMMON = {
    "data.sft_texts": 2000,
    "data.train_prompts": 64,
    "data.heldout_prompts": 8,
    "evaluate.prompts": 8,
    "sft.steps": 2,
    "sft.batch_size": 16,
    "reward.pairs": 32,
    "reward.heldout_pairs": 8,
    "reward.calibration_samples": 32,
    "reward.epochs": 3,
    "reward.batch_size": 32,
    "train.steps": 4,
    "train.batch_size": 32,
    "train.num_mini_batches": 2,
    "train.num_epochs": 2,
    "train.response_length": 32,
    "optimiser.lr": 1e-6,
    "optimiser.guard": False,
    "runtime.micro_batch_size": 16,
    "runtime.rollout_batch_size": 32,
}
WIDE = {"model_type": "qwen2", "vocab_size": 32_000, "tie_word_embeddings": True, "max_position_embeddings": 512}
SMALL = {
    **WIDE,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 704,
}
LARGE = {
    **WIDE,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1408,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50_257,
    "n_embd": 512,
    "n_layer": 9,
    "n_head": 8,
    "n_positions": 512,
    "tie_word_embeddings": True,
}
SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "10M": (SMALL, {}),
    "10M-separate": (SMALL, {"critic.kind": "separate"}),
    "10M-lora": (SMALL, {"adapter.kind": "lora"}),
    "42M": (LARGE, {}),
    "42M-recomputed": (LARGE, {"runtime.gradient_checkpointing": True}),
    "42M-wide-batch": (
        LARGE,
        {"runtime.micro_batch_size": 32, "train.batch_size": 64, "runtime.rollout_batch_size": 64},
    ),
    "gpt2-56M": (GPT2, {}),
}


def base(folder: Path, sizes: dict[str, Any]) -> Path:
    """A random network in the hub's layout; its tokenizer knows fewer words than its vocabulary has places."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from pipeline.config.data import DataConfig
    from pipeline.data.corpus import load_corpus
    from pipeline.data.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(load_corpus(DataConfig(sft_texts=2000)).train, 700)
    config = AutoConfig.for_model(**sizes, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configured(name: str, folder: Path) -> TrialConfig:
    """The trial of a size."""
    return load_config("tiny", {**COMMON, **SIZES[name][1], "model.base": str(folder)})


def measure(name: str, root: Path) -> dict[str, tuple[float, float]]:
    """(predicted, measured) peak of each stage, GiB; the trial runs through the same commands as any other."""
    folder = base(root / "base", SIZES[name][0])
    settings = {**COMMON, **SIZES[name][1], "model.base": str(folder)}
    command = [sys.executable, "-m", "ablate", "run", "--profile", "tiny", "--out", str(root / "out")]
    for key, value in settings.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = predict(configured(name, folder))
    assert found is not None
    costs = {
        stage: json.loads(next((root / "out" / "store" / stage).glob("*/log/cost.json")).read_text())
        for stage in found.stages
    }
    return {stage: (found.stage_gib(stage), costs[stage]["peak_memory_gib"]) for stage in found.stages}


if __name__ == "__main__":
    for one in sys.argv[1:] or SIZES:
        with tempfile.TemporaryDirectory() as place:
            peaks = measure(one, Path(place))
            parts = predict(configured(one, Path(place) / "base"))
            for stage, (predicted, peak) in peaks.items():
                percent = 100 * (predicted / peak - 1)
                print(
                    f"{one:16s} {stage:9s} predicted {predicted:.2f} GiB, measured {peak:.2f} GiB, {percent:+.0f} %",
                    flush=True,
                )
                print(
                    "   ",
                    {key: round(size, 2) for key, size in parts.stages[stage].items()} if parts else "",
                    flush=True,
                )
