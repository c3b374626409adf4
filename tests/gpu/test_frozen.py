"""Frozen networks off the card, and in half precision: what either frees there, and that neither changes a result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, choose, config, emptied, furthest, needs_allocator, peak_gib, series, trial
from gpu.hardware import write_base as write

from pipeline.forecast.advice import predict
from pipeline.models.loading import freeze, load_snapshot
from pipeline.models.offload import Offload

pytestmark = pytest.mark.gpu
SAME = 0.02
"""Relative: on a card a sum need not be rounded alike twice, and a token may flip."""
TRIAL: dict[str, Any] = {
    "data__sft_texts": 2000, "data__train_prompts": 128, "data__heldout_prompts": 16, "evaluate__prompts": 16,
    "sft__steps": 2, "sft__lr": 1e-5, "reward__learned__lr": 1e-5, "train__steps": 4, "train__batch_size": 128,
    "train__num_mini_batches": 1, "train__num_epochs": 2, "optimiser__lr": 1e-6, "runtime__micro_batch_size": 128,
    "runtime__rollout_batch_size": 32,
}  # fmt: skip
"""A gradient step needs more memory than a rollout, so that a network off the card lowers the peak meanwhile."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write(tmp_path_factory.mktemp("frozen") / "base", "medium" if DEVICE == "cuda" else "tiny")
    emptied()


def trained(root: Path, base: Path, **changes: Any) -> tuple[dict[int, dict[str, float]], float]:
    """The series of a training, and the GiB at its peak."""
    emptied()
    outcome = trial(root, until="train", **{**TRIAL, "model__base": str(base), **changes})
    assert outcome.status == "complete"
    return series(outcome), peak_gib(outcome, "train")


def saved(base: Path, **changes: Any) -> float:
    """GiB that the forecast of the training falls by."""
    plain, less = (predict(config(**{**TRIAL, "model__base": str(base), **more})) for more in ({}, changes))
    assert plain is not None
    assert less is not None
    return plain.stage_gib("train") - less.stage_gib("train")


def test_a_network_that_leaves_the_card_frees_its_bytes_and_says_the_same_when_it_is_back(base: Path) -> None:
    needs_allocator()
    lm = freeze(load_snapshot(base, torch.device(DEVICE)))
    tokens = torch.arange(2, 34, device=DEVICE)[None]
    with torch.no_grad():
        wanted = lm(input_ids=tokens).logits
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    offload = Offload([lm], torch.device(DEVICE))
    assert all(one.is_pinned() for one in lm.parameters())
    for _ in range(2):
        assert before - torch.cuda.memory_allocated() == pytest.approx(offload.nbytes, rel=0.01)
        with offload.at_hand(), torch.no_grad():
            assert torch.cuda.memory_allocated() == pytest.approx(before, rel=0.01)
            assert torch.equal(lm(input_ids=tokens).logits, wanted)
    assert before - torch.cuda.memory_allocated() == pytest.approx(offload.nbytes, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "change"),
    [
        ("fp32", {"runtime__offload_reference": True}),
        *((half, {"train__frozen_dtype": half}) for half in HALVES),
    ],
)
def test_frozen_networks_off_the_card_or_rounded_take_less_and_change_no_result(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any, precision: str, change: Any
) -> None:
    """What is rounded to the precision of the products shows no KL before the first step."""
    choose(monkeypatch, precision)
    if precision == "fp32":
        needs_allocator()
    rows, plain = trained(tmp_path / "plain", base)
    found, less = trained(tmp_path / "less", base, **change)
    drifts = [one[0]["objective/kl_exact_per_token"] for one in (rows, found)]
    record_property("KL before the first step, nats per token", drifts)
    assert max(drifts) < 1e-6
    assert furthest(rows, found) < SAME
    if DEVICE == "cuda":
        record_property("GiB, freed and predicted", [round(plain - less, 3), round(saved(base, **change), 3)])
        assert plain - less == pytest.approx(saved(base, **change), rel=0.25)
