"""Gradient steps on the card: loss scaling, every controller in half precision, and the checks before the first
step."""

from __future__ import annotations

import copy
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, choose, needs_allocator
from tinytrial import CONTROLS, trainer

from pipeline.models.policy import Episodes
from pipeline.models.precision import Precision
from pipeline.resources.out_of_memory import Room
from pipeline.run.metrics_log import merged
from pipeline.training import update
from pipeline.training.selfcheck import SelfCheckFailed, check_padding
from pipeline.training.supervised import Supervised

pytestmark = pytest.mark.gpu
PRECISIONS = ("fp32", *HALVES)


@torch.no_grad()
def apart(one: torch.nn.Module, other: torch.nn.Module) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_gradient_that_overflows_fp16_costs_one_step_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "fp16")
    network = torch.nn.Linear(4, 1).to(DEVICE)
    steps, before = Supervised(network, [], 0.0, Room("sft.batch_size", 2), False), copy.deepcopy(network)

    def loss(value: float, factor: float) -> torch.Tensor:
        return network(torch.full((2, 4), value, device=DEVICE)).float().sum() * factor

    steps.step(0.1, 2, lambda part: loss(60_000.0, 1e30))
    assert apart(network, before) == 0.0
    for _ in range(20):  # until the scale is one that fits
        steps.step(0.1, 2, lambda part: loss(1.0, 1.0))
    assert apart(network, before) > 0.01
    assert all(bool(torch.isfinite(one).all()) for one in network.parameters())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("control", CONTROLS)
def test_every_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str, precision: str) -> None:
    if control == "few bits" and find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    choose(monkeypatch, precision)
    outcome = trainer(tmp_path, device=DEVICE, **CONTROLS[control]).run()
    assert (outcome.status, outcome.reason) == ("complete", None)
    rows = merged(tmp_path / "metrics.jsonl")
    assert all(math.isfinite(value) for row in rows.values() for value in row.values())


@pytest.mark.parametrize(
    ("control", "precision"), [*((control, "fp16") for control in CONTROLS), ("fixed", "fp32"), ("fixed", "bf16")]
)
def test_a_micro_batch_never_waits_for_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str, precision: str
) -> None:
    """From the second one on: libraries that are used for the first time may wait."""
    needs_allocator()
    if control == "few bits":
        pytest.skip("kernels of bitsandbytes are not ours")
    choose(monkeypatch, precision)
    backward, seen = update.backward, [0]

    def watched(*args: Any) -> Any:
        seen[0] += 1
        torch.cuda.set_sync_debug_mode("error" if seen[0] > 4 else "default")
        try:
            return backward(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(update, "backward", watched)
    knobs = {"train__steps": 8, **CONTROLS[control]}
    outcome = trainer(tmp_path, device=DEVICE, runtime={"micro_batch_size": 2}, **knobs).run()
    assert outcome.status == "complete"
    assert seen[0] > 4 or control == "target"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_epochs_that_target_kl_ends_are_followed_by_further_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, record_property: pytest.RecordProperty
) -> None:
    choose(monkeypatch, precision)
    outcome = trainer(tmp_path, device=DEVICE, train__steps=40, optimiser__lr=3e-2, algorithm__target_kl=2e-3).run()
    taken = [
        int(row["policy/update_steps"])
        for row in merged(tmp_path / "metrics.jsonl").values()
        if "policy/update_steps" in row
    ]
    record_property("steps taken in each update", taken)
    assert outcome.status == "complete"
    assert min(taken) < 4  # ended early
    assert any(early < 4 and sum(taken[place + 1 :]) for place, early in enumerate(taken))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cliprange", [0.02, 0.2])
def test_the_first_step_is_on_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, cliprange: float
) -> None:
    choose(monkeypatch, precision)
    assert trainer(tmp_path, device=DEVICE, train__steps=8, algorithm__cliprange=cliprange).run().status == "complete"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_policy_that_is_not_the_reference_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    choose(monkeypatch, precision)
    one = trainer(tmp_path, device=DEVICE, train__steps=8)
    with torch.no_grad():
        for parameter in one.actor.lm.parameters():
            parameter.mul_(3.0)  # further than bf16 rounds
    with pytest.raises(SelfCheckFailed, match="away from its reference"):
        one.run()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_padding_moves_no_log_probability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    choose(monkeypatch, precision)
    one = trainer(tmp_path, device=DEVICE, train__steps=8)
    device = next(one.actor.parameters()).device
    tokens = torch.randint(2, 31, (2, 12), generator=torch.Generator().manual_seed(0)).to(device)
    query_mask = torch.arange(4, device=device) >= torch.tensor([[0], [2]], device=device)
    response_mask = torch.arange(8, device=device) < torch.tensor([[8], [3]], device=device)
    episodes = Episodes(tokens, query_mask, response_mask, torch.zeros(2, dtype=torch.bool, device=device))
    with Precision.of(device).autocast():
        check_padding(episodes, one.actor, 1.0, {"fp32": 1e-3, "fp16": 3e-2, "bf16": 1e-1}[precision])
        ignores_masks(one.actor.lm)
        with pytest.raises(SelfCheckFailed, match="padding"):
            check_padding(episodes, one.actor, 1.0, 1e-3)


def ignores_masks(lm: torch.nn.Module) -> None:
    """Have a network count its positions from the first column on and look at everything before."""

    def forget(
        _: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
    ) -> tuple[object, dict[str, object]]:
        mask = kwargs.get("attention_mask")
        plain = mask is not None and mask.dim() == 2
        changed = {"attention_mask": torch.ones_like(mask), "position_ids": None} if plain and mask is not None else {}
        return args, {**kwargs, **changed}

    lm.model.register_forward_pre_hook(forget, with_kwargs=True)
