"""Gradient steps on the card: loss scaling, every controller in every precision, the checks before the first step."""

from __future__ import annotations

import copy
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, HALVES, choose
from tinytrial import CONTROLS, trainer

from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
from pipeline.models.precision import Precision
from pipeline.run.metrics_log import merged
from pipeline.training.selfcheck import SelfCheckFailed, check_padding
from pipeline.training.supervised import Supervised

pytestmark = pytest.mark.gpu
PRECISIONS = ("fp32", *HALVES)


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    choose(monkeypatch, request.param)
    return str(request.param)


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


@pytest.mark.parametrize("control", CONTROLS)
def test_every_control_trains(tmp_path: Path, control: str, precision: str) -> None:
    if control == "few bits" and find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    outcome = trainer(tmp_path, device=DEVICE, runtime={"micro_batch_size": 2}, **CONTROLS[control]).run()
    assert (outcome.status, outcome.reason) == ("complete", None)
    rows = merged(tmp_path / "metrics.jsonl")
    assert all(math.isfinite(value) for row in rows.values() for value in row.values())


def test_a_policy_that_is_not_the_reference_is_refused(tmp_path: Path, precision: str) -> None:
    one = trainer(tmp_path, device=DEVICE, train__steps=8)
    with torch.no_grad():
        for parameter in one.actor.lm.parameters():
            parameter.mul_(3.0)  # further than bf16 rounds
    with pytest.raises(SelfCheckFailed, match="away from its reference"):
        one.run()


def test_padding_moves_no_log_probability(tmp_path: Path, precision: str) -> None:
    one = trainer(tmp_path, device=DEVICE, train__steps=8)
    device = next(one.actor.parameters()).device
    tokens = torch.randint(2, 31, (2, 12), generator=torch.Generator().manual_seed(0)).to(device)
    query_mask = torch.arange(4, device=device) >= torch.tensor([[0], [2]], device=device)
    response_mask = torch.arange(8, device=device) < torch.tensor([[8], [3]], device=device)
    episodes = Episodes(tokens, query_mask, response_mask, torch.zeros(2, dtype=torch.bool, device=device))
    with Precision.of(device).autocast():
        check_padding(episodes, one.actor, 1.0, {"fp32": 1e-3, "fp16": 3e-2, "bf16": 1e-1}[precision])
        one.actor.lm.model.register_forward_pre_hook(ignore_the_mask, with_kwargs=True)
        with pytest.raises(SelfCheckFailed, match="padding"):
            check_padding(episodes, one.actor, 1.0, 1e-3)


def ignore_the_mask(_: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Have a network count its positions from the first column on and look at everything before."""
    mask = kwargs.get("attention_mask")
    plain = mask is not None and mask.dim() == 2
    return args, kwargs | ({"attention_mask": torch.ones_like(mask), "position_ids": None} if plain else {})
