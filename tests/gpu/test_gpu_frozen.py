"""Frozen networks off the card, and in half precision: what either frees there, and that neither changes a result."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.base import write_base
from gpu.hardware import DEVICE, HALVES, choose, config, furthest, needs_allocator, trial

from pipeline.forecast.advice import predict
from pipeline.models.loading import freeze, load_snapshot
from pipeline.models.offload import Offload
from pipeline.run.metrics_log import merged

pytestmark = pytest.mark.gpu
SAME = 0.02
"""Relative: on a card a sum need not be rounded alike twice, and a token may flip."""
NONE = 1e-6
"""Nats per token: no KL."""
TRIAL: dict[str, Any] = {
    "data__sft_texts": 2000,
    "data__train_prompts": 128,
    "data__heldout_prompts": 16,
    "evaluate__prompts": 16,
    "sft__steps": 2,
    "sft__lr": 1e-5,
    "reward__lr": 1e-5,
    "train__steps": 4,
    "train__batch_size": 128,
    "train__num_mini_batches": 1,
    "train__num_epochs": 2,
    "optimiser__lr": 1e-6,
    "runtime__micro_batch_size": 128,
    "runtime__rollout_batch_size": 32,
}
"""A gradient step needs more memory than a rollout, so a network that is away while one is taken lowers the peak."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("frozen")
    write_base(root / "base", "medium" if DEVICE == "cuda" else "tiny")
    yield root
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def trained(root: Path, **changes: Any) -> tuple[dict[int, dict[str, float]], float]:
    """The series of a training, and the GiB at its peak."""
    gc.collect()
    outcome = trial(root / "out", until="train", **{**TRIAL, "model__base": str(root / "base"), **changes})
    folder = outcome.artifacts["train"].path
    assert outcome.status == "complete"
    cost = json.loads((folder / "log" / "cost.json").read_text("utf-8"))
    return merged(folder / "metrics.jsonl"), cost["peak_memory_gib"]


def predicted(root: Path, **changes: Any) -> float:
    """GiB of the training."""
    found = predict(config(**{**TRIAL, "model__base": str(root / "base"), **changes}))
    assert found is not None
    return found.stage_gib("train")


def test_a_network_that_leaves_the_card_frees_its_bytes_and_says_the_same_when_it_is_back(base: Path) -> None:
    needs_allocator()
    lm = freeze(load_snapshot(base / "base", torch.device(DEVICE)))
    tokens = torch.arange(2, 34, device=DEVICE)[None]
    with torch.no_grad():
        wanted = lm(input_ids=tokens).logits
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    away = Offload([lm], torch.device(DEVICE))
    assert before - torch.cuda.memory_allocated() == pytest.approx(away.nbytes, rel=0.01)
    assert all(one.is_pinned() for one in lm.parameters())
    for _ in range(2):
        with away.at_hand(), torch.no_grad():
            assert torch.cuda.memory_allocated() == pytest.approx(before, rel=0.01)
            assert torch.equal(lm(input_ids=tokens).logits, wanted)
        assert before - torch.cuda.memory_allocated() == pytest.approx(away.nbytes, rel=0.01)


def test_a_trial_whose_reference_and_reward_leave_the_card_takes_as_much_less(
    base: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    needs_allocator()
    choose(monkeypatch, "fp32")
    rows, there = trained(base)
    root = base / "away"  # how memory is used is part of no key, so another store
    root.mkdir()
    (root / "base").symlink_to(base / "base")
    found, away = trained(root, runtime__offload_reference=True)
    saved = predicted(base) - predicted(base, runtime__offload_reference=True)
    record_property("GiB, there and away", [round(there, 3), round(away, 3)])
    record_property("GiB, freed and predicted", [round(there - away, 3), round(saved, 3)])
    assert there - away == pytest.approx(saved, rel=0.25)
    assert furthest(rows, found) < SAME


@pytest.mark.parametrize("held", HALVES)
def test_a_reference_held_as_products_are_computed_shows_no_kl_and_takes_less(
    base: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any, held: str
) -> None:
    choose(monkeypatch, held)
    rows, plain = trained(base)
    found, half = trained(base, train__frozen_dtype=held)
    drifts = [series[0]["objective/kl_exact_per_token"] for series in (rows, found)]
    record_property("KL before the first step, nats per token, in fp32 and held", drifts)
    assert max(drifts) < NONE
    assert furthest(rows, found) < SAME
    if DEVICE == "cuda":
        saved = predicted(base) - predicted(base, train__frozen_dtype=held)
        record_property("GiB, freed and predicted", [round(plain - half, 3), round(saved, 3)])
        assert plain - half == pytest.approx(saved, rel=0.25)
