"""What needs more than a card: 4-bit weights (bitsandbytes), two processes (two cards)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from gpu.hardware import furthest, trial
from tinytrial import FEW_BITS

from pipeline.models.precision import CHOICE
from pipeline.run.metrics_log import merged

pytestmark = pytest.mark.gpu


def test_a_policy_in_4_bits_beside_a_critic_in_8(tmp_path: Path) -> None:
    if find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    outcome = trial(tmp_path, model__hidden_size=64, model__intermediate_size=128, **FEW_BITS)
    assert (outcome.status, outcome.reason) == ("complete", None)


def test_two_processes_give_what_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} CUDA devices are visible, two are needed")
    monkeypatch.setenv(CHOICE, "fp32")
    rows = []
    for processes in (1, 2):
        outcome = trial(tmp_path / str(processes), until="train", runtime__processes=processes)
        assert outcome.status == "complete"
        rows.append(merged(outcome.artifacts["train"].path / "metrics.jsonl"))
    first = min(rows[0])
    record_property("largest difference of the metrics", f"{furthest(*rows):.2g}")
    assert furthest({first: rows[0][first]}, {first: rows[1][first]}) < 0.01
