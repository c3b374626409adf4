"""The device, its precisions, random networks in the layout of the hub, and small trials on them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke

from pipeline.forecast.memory import PUBLISHED
from pipeline.models.loading import CausalLM
from pipeline.models.precision import CHOICE
from pipeline.run.layout import Layout
from pipeline.run.metrics import merged
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

DEVICE = os.environ.get("GPU_DEVICE", "cuda")
"""``cpu`` in a rehearsal of `make gpu`."""
HALVES = ("fp16", "bf16")
GIB = 2**30
LEAST_GIB = 14.0  # a T4 reports 14.6
QWEN: dict[str, Any] = json.loads((PUBLISHED / "Qwen" / "Qwen1.5-0.5B" / "config.json").read_text("utf-8"))
"""config.json of Qwen/Qwen1.5-0.5B, as far as it concerns shapes."""
MEDIUM = {**QWEN, "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8}
"""8.5 M parameters: activations of a full batch are many times the weights, so that a cap on memory bites."""
FEW_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
TINY = {**MEDIUM, **FEW_HEADS, "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64}


def card() -> dict[str, Any]:
    """Name, memory and software of the card (in a rehearsal, of the CPU); `why` it cannot be tested."""
    found: dict[str, Any] = {"device": DEVICE, "name": "CPU", "torch": torch.__version__, "why": ""}
    if DEVICE == "cuda":
        if not torch.cuda.is_available():
            return {"why": "no CUDA device is visible"}
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / GIB
        found |= {
            "name": properties.name, "count": torch.cuda.device_count(), "memory, GiB": memory,
            "capability": f"{properties.major}.{properties.minor}", "CUDA of torch": torch.version.cuda,
        }  # fmt: skip
        if memory < LEAST_GIB:
            found["why"] = f"{properties.name} has {memory:.1f} GiB; {LEAST_GIB:.0f} GiB are needed"
    return found


def choose(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Compute in a precision; skips the test where the card lacks it."""
    if precision == "bf16" and DEVICE == "cuda" and torch.cuda.get_device_capability(0) < (8, 0):
        pytest.skip("bf16 needs compute capability 8.0")
    monkeypatch.setenv(CHOICE, precision)


def needs_allocator() -> None:
    """Skip where there is no CUDA allocator whose memory can be capped."""
    if DEVICE != "cuda":
        pytest.skip("needs the allocator of a CUDA device")


def trial(root: Path, watch: Recorder | None = None, until: str | None = None, **changes: Any) -> TrialOutcome:
    return run_trial(smoke(runtime__device=DEVICE, **changes), Layout(root), watch or Recorder(), until=until)


def series(outcome: TrialOutcome) -> dict[int, dict[str, float]]:
    return merged(outcome.artifacts["train"].path / "metrics.jsonl")


def numbers(outcome: TrialOutcome, stage: str) -> dict[int, dict[str, float]]:
    """A stage's measurements, for comparison: the first record of a training, the summary of another stage."""
    if stage == "train":
        return dict([min(series(outcome).items())])
    summary = read(outcome, stage, "summary.json")
    return {0: {key: value for key, value in summary.items() if isinstance(value, int | float)}}


def read(outcome: TrialOutcome, stage: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.artifacts[stage].path / name).read_text("utf-8"))
    return found


def peak_gib(outcome: TrialOutcome, stage: str) -> float:
    return float(read(outcome, stage, "log/cost.json")["peak_memory_gib"])


def furthest(one: dict[int, dict[str, float]], other: dict[int, dict[str, float]]) -> float:
    """The largest difference of two series of metrics, relative to 1 or to the value where that is larger."""
    assert one.keys() == other.keys()
    return max(
        abs(other[step][key] - value) / max(1.0, abs(value)) for step, row in one.items() for key, value in row.items()
    )


def network(**sizes: int) -> CausalLM:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**QWEN, **sizes})).eval().to(DEVICE)
