"""What the tests of a card need to know of the machine: the device, the precisions it has, and why something cannot be
tested."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke

from pipeline.config.trial import TrialConfig
from pipeline.models.precision import CHOICE
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
from pipeline.trial import run_trial

DEVICE = os.environ.get("GPU_DEVICE", "cuda")
"""``cpu`` in a rehearsal of `make gpu`."""
HALVES = ("fp16", "bf16")


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
    """The smoke trial on the device, with changes."""
    return run_trial(config(**changes), Layout(root), watch or Recorder(), until=until)


def config(**changes: Any) -> TrialConfig:
    """The configuration of `trial`."""
    return smoke(**{"runtime__device": DEVICE, **changes})


def furthest(one: dict[int, dict[str, float]], other: dict[int, dict[str, float]]) -> float:
    """The largest difference of two series of metrics, relative to 1 or to the value where that is larger."""
    assert one.keys() == other.keys()
    return max(
        abs(other[step][key] - value) / max(1.0, abs(value)) for step, row in one.items() for key, value in row.items()
    )
