"""Running out of memory on the card at every stage: fewer rows at once, the same results; and the allocator's cap.

The cap stands in for a smaller card. It leaves room for what a stage must hold, and for half of what all rows at once
need.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, GIB, MEDIUM, furthest, needs_allocator, numbers, peak_gib, read, trial
from helpers import Recorder, random_base

from pipeline.errors import UserError
from pipeline.models.precision import CHOICE
from pipeline.resources.machine import hold_allocator
from pipeline.run.progress import TrialOutcome
from pipeline.stages.graph import STAGES as DECLARED

pytestmark = pytest.mark.gpu
BYTES_A_WEIGHT = {"sft": 16, "reward": 20, "reference": 8, "train": 32, "evaluate": 12}
"""Bytes of each stage for a weight: networks, gradients, Adam's two moments, room for half-precision copies; fp32."""
WORKSPACE = 64 * 2**20
"""Bytes of cuBLAS, and those that the allocator loses between blocks."""
ONE_ROW = 120 * 2**20
"""About what a gradient step on a single episode needs beside the networks: gradients, workspace, activations."""
SAME = 0.02
"""Relative tolerance: rows in other groups are other sums, and a token may flip."""
TRIAL: dict[str, Any] = {
    "data__sft_texts": 2000, "data__train_prompts": 512, "data__heldout_prompts": 256, "sft__steps": 6,
    "sft__lr": 1e-4, "sft__batch_size": 64, "sft__max_tokens": 24, "reward__learned__lr": 1e-4,
    "reward__learned__pairs": 96, "reward__learned__heldout_pairs": 32, "reward__calibration_samples": 256,
    "reward__learned__batch_size": 96, "reward__learned__epochs": 2, "evaluate__prompts": 256,
    "evaluate__reference_draws": 2, "train__steps": 8, "train__batch_size": 256, "train__num_mini_batches": 1,
    "train__num_epochs": 2, "train__response_length": 48, "optimiser__lr": 1e-5, "runtime__micro_batch_size": 256,
    "runtime__rollout_batch_size": 256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def uncapped() -> Iterator[None]:
    """A test begins with all memory that nothing holds, and ends without its cap."""
    needs_allocator()
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


class Roomy:
    def __init__(self, root: Path) -> None:
        self.store, watch = root / "out" / "store", Recorder()
        self.changes = {**TRIAL, "model__base": str(random_base(root / "base", MEDIUM))}
        self.outcome = trial(root / "out", watch, **self.changes)
        assert self.outcome.status == "complete"
        assert not [one for one in watch.warnings if "memory" in one]

    def held(self, stage: str) -> int:
        """Bytes that a stage holds whatever goes through it."""
        return int(BYTES_A_WEIGHT[stage] * read(self.outcome, "sft", "summary.json")["parameters"])

    def capped(self, folder: Path, stage: str, bytes_: float) -> tuple[TrialOutcome, list[str]]:
        """Build one stage under a cap; the stages before it are taken as they are."""
        order = [one.name for one in DECLARED]
        for one in [name for name in order[: order.index(stage)] if (self.store / name).exists()]:
            shutil.copytree(self.store / one, folder / "store" / one)
        watch = Recorder()
        outcome = trial(folder, watch, until=stage, **{**self.changes, "caps__memory_gib": bytes_ / GIB})
        return outcome, [one for one in watch.warnings if "memory" in one]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roomy]:
    needs_allocator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, "fp32")
        yield Roomy(tmp_path_factory.mktemp("roomy"))


@pytest.mark.parametrize("stage", BYTES_A_WEIGHT)
def test_a_stage_that_runs_out_of_memory_takes_fewer_rows_at_once(
    roomy: Roomy, tmp_path: Path, stage: str, record_property: Any
) -> None:
    least, most = roomy.held(stage) + WORKSPACE, peak_gib(roomy.outcome, stage) * GIB
    cap = least + (most - least) / 2
    sizes = ", ".join(f"{one / GIB:.2f}" for one in (most, roomy.held(stage), cap))
    record_property("GiB, with room, held and cap", sizes)
    assert most > least * 1.2, "the stage takes too little memory for a cap to bite"
    outcome, warnings = roomy.capped(tmp_path, stage, cap)
    record_property("warnings", len(warnings))
    assert warnings, "it never ran out of memory"
    assert stage != "train" or outcome.status == "complete"
    assert furthest(numbers(roomy.outcome, stage), numbers(outcome, stage)) < SAME


def test_where_not_one_row_fits_a_trial_ends_as_budget_and_a_reference_is_refused(roomy: Roomy, tmp_path: Path) -> None:
    outcome, _ = roomy.capped(tmp_path / "train", "train", roomy.held("evaluate") + ONE_ROW / 2)
    assert outcome.status == "budget"
    assert "memory" in str(outcome.reason)
    assert (outcome.artifacts["train"].path / "policy" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="memory"):
        roomy.capped(tmp_path / "sft", "sft", roomy.held("sft") / 3)


def test_the_allocator_is_held_to_14_6_gib_on_a_larger_card() -> None:
    free, total = (size / GIB for size in torch.cuda.mem_get_info(0))
    if total < 16.5 or free < 16:
        pytest.skip(f"the card has {total:.1f} GiB and {free:.1f} of it free; 16.5 and 16 are needed")
    hold_allocator(14.6)
    blocks: list[torch.Tensor] = []
    with pytest.raises(torch.OutOfMemoryError):
        blocks.extend(torch.empty(GIB, dtype=torch.uint8, device=DEVICE) for _ in range(16))
    assert len(blocks) in (13, 14)
