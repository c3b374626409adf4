"""Running out of memory on the card, at every stage: fewer rows at once, the same results; and the cap on the
allocator.

The cap stands in for a smaller card. It leaves room for what a stage must hold, and for half of what all rows at once
need.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.base import write_base
from gpu.card import GIB
from gpu.hardware import DEVICE, needs_allocator, trial
from helpers import Recorder

from pipeline.errors import UserError
from pipeline.models.precision import CHOICE
from pipeline.resources.machine import hold_allocator
from pipeline.run.metrics_log import merged
from pipeline.run.outcome import TrialOutcome
from pipeline.stages import STAGES as DECLARED

pytestmark = pytest.mark.gpu
CAP = "caps__memory_gib"
BYTES_A_WEIGHT = {"sft": 16, "reward": 20, "reference": 8, "train": 32, "evaluate": 12}
"""What each stage holds for every weight: networks, gradients, Adam's two moments, room for half-precision copies;
fp32."""
STAGES = tuple(BYTES_A_WEIGHT)
WORKSPACE = 64 * 2**20
"""Of cuBLAS, and what the allocator loses between blocks."""
ONE_ROW = 120 * 2**20
"""About what a gradient step on a single episode needs beside the networks: gradients, workspace, activations."""
SAME = 0.02
"""Relative: rows in other groups are other sums, and a token may flip."""
TRIAL: dict[str, Any] = {
    "data__sft_texts": 2000,
    "data__train_prompts": 512,
    "data__heldout_prompts": 256,
    "sft__steps": 6,
    "sft__lr": 1e-4,
    "reward__lr": 1e-4,
    "sft__batch_size": 64,
    "sft__max_tokens": 24,
    "reward__pairs": 96,
    "reward__heldout_pairs": 32,
    "reward__calibration_samples": 256,
    "reward__batch_size": 96,
    "reward__epochs": 2,
    "evaluate__prompts": 256,
    "evaluate__reference_draws": 2,
    "train__steps": 8,
    "train__batch_size": 256,
    "train__num_mini_batches": 1,
    "train__num_epochs": 2,
    "train__response_length": 48,
    "optimiser__lr": 1e-5,
    "runtime__micro_batch_size": 256,
    "runtime__rollout_batch_size": 256,
}


Roomy = tuple[Path, dict[str, Any], TrialOutcome]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roomy]:
    """A trial with room for everything: its folder, its changes, what came of it."""
    needs_allocator()
    root = tmp_path_factory.mktemp("roomy")
    changes = {**TRIAL, "model__base": str(write_base(root / "base", "medium"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, "fp32")
        watch = Recorder()
        outcome = trial(root / "out", watch, **changes)
        assert outcome.status == "complete"
        assert not [one for one in watch.warnings if "memory" in one]
        yield root / "out", changes, outcome
    torch.cuda.set_per_process_memory_fraction(1.0)


def held(stage: str, outcome: TrialOutcome) -> int:
    """Bytes that a stage holds whatever goes through it."""
    weights = json.loads((outcome.artifacts["sft"].path / "summary.json").read_text("utf-8"))["parameters"]
    return BYTES_A_WEIGHT[stage] * weights


def peak(stage: str, outcome: TrialOutcome) -> float:
    """Bytes at the peak of a stage."""
    return (
        float(json.loads((outcome.artifacts[stage].path / "log" / "cost.json").read_text("utf-8"))["peak_memory_gib"])
        * GIB
    )


def capped(
    root: Path, folder: Path, changes: dict[str, Any], stage: str, bytes_: float, **more: Any
) -> tuple[TrialOutcome, list[str]]:
    """Build one stage under a cap; the stages before it are taken as they are."""
    order = [one.name for one in DECLARED]
    for one in [name for name in order[: order.index(stage)] if (root / "store" / name).exists()]:
        shutil.copytree(root / "store" / one, folder / "store" / one)
    gc.collect()
    torch.cuda.empty_cache()
    watch = Recorder()
    try:
        return trial(folder, watch, until=stage, **{**changes, CAP: bytes_ / GIB, **more}), watch.warnings
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def numbers(stage: str, outcome: TrialOutcome) -> dict[str, float]:
    """What a stage measured, for comparison."""
    folder = outcome.artifacts[stage].path
    if stage == "train":
        rows = merged(folder / "metrics.jsonl")
        return rows[min(rows)]
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_runs_out_of_memory_takes_fewer_rows_at_once(
    roomy: Roomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, record_property: Any
) -> None:
    monkeypatch.setenv(CHOICE, "fp32")
    root, changes, whole = roomy
    least, most = held(stage, whole) + WORKSPACE, peak(stage, whole)
    record_property("GiB, with room and held", [round(most / GIB, 2), round(held(stage, whole) / GIB, 2)])
    assert most > least * 1.2, "the stage takes too little memory for a cap to bite"
    cap = least + (most - least) / 2
    record_property("cap, GiB", round(cap / GIB, 2))
    outcome, warnings = capped(root, tmp_path, changes, stage, cap)
    record_property("warnings", len(warnings))
    assert [one for one in warnings if "memory" in one], "it never ran out of memory"
    if stage == "train":
        assert outcome.status == "complete"
    wanted, found = numbers(stage, whole), numbers(stage, outcome)
    assert found.keys() == wanted.keys()
    apart = {key: abs(found[key] - value) / max(1.0, abs(value)) for key, value in wanted.items()}
    assert max(apart.values()) < SAME, {key: value for key, value in apart.items() if value >= SAME}


def test_a_trial_that_not_one_episode_fits_ends_as_budget(
    roomy: Roomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, "fp32")
    root, changes, whole = roomy
    outcome, _ = capped(root, tmp_path, changes, "train", held("evaluate", whole) + ONE_ROW / 2)
    assert outcome.status == "budget"
    assert outcome.reason is not None
    assert "memory" in outcome.reason
    assert (outcome.artifacts["train"].path / "policy" / "model.safetensors").is_file()


def test_a_reference_that_not_one_text_fits_is_refused_in_words(
    roomy: Roomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, "fp32")
    root, changes, whole = roomy
    with pytest.raises(UserError, match="memory"):
        capped(root, tmp_path, changes, "sft", held("sft", whole) / 3)


def test_the_allocator_is_held_to_14_6_gib_on_a_larger_card() -> None:
    needs_allocator()
    total = torch.cuda.get_device_properties(0).total_memory
    if total < 16.5 * GIB:
        pytest.skip(f"the card has {total / GIB:.1f} GiB, more than 16.5 are needed")
    if torch.cuda.mem_get_info(0)[0] < 16 * GIB:
        pytest.skip("less than 16 GiB of the card are free")
    gc.collect()
    torch.cuda.empty_cache()
    hold_allocator(14.6)
    blocks: list[torch.Tensor] = []
    try:
        with pytest.raises(torch.OutOfMemoryError):
            fill(blocks)
        assert len(blocks) in (13, 14)
    finally:
        blocks.clear()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)


def fill(blocks: list[torch.Tensor]) -> None:
    """Add a GiB at a time, 16 at most."""
    for _ in range(16):
        blocks.append(torch.empty(GIB, dtype=torch.uint8, device=DEVICE))
