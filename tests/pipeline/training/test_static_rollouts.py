"""Whole trainings whose rollouts the static sampler draws: on a CPU they are those of the eager one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import smoke
from tinytrial import CONTROLS, run

from pipeline.stages.graph import STAGES

STATIC = {"sampler": "static"}


@pytest.mark.parametrize("control", ["fixed", "lora", "remax", "vine_ppo"])  # the last two sample beside the rollout
def test_a_training_is_that_of_the_eager_sampler(control: str, tmp_path: Path) -> None:
    knobs = {"train__steps": 12, "train__temperature": 0.9, **CONTROLS[control]}
    outcome, series, weights = run(tmp_path / "static", runtime=STATIC, **knobs)
    wanted_outcome, wanted, wanted_weights = run(tmp_path / "eager", **knobs)
    assert (outcome.status, outcome.tokens) == (wanted_outcome.status, wanted_outcome.tokens)
    assert series == wanted
    assert all(torch.equal(weights[name], tensor) for name, tensor in wanted_weights.items())


def test_the_sampler_is_part_of_the_identity_of_training_alone() -> None:
    def precisions(**changes: Any) -> dict[str, str]:
        config = smoke(**changes)
        return {stage.name: stage.precision(config) for stage in STAGES if stage.precision}

    eager, static = precisions(), precisions(runtime__sampler="static")
    assert set(eager.values()) == {"fp32"}
    assert precisions(runtime__sampler="eager") == eager
    assert {name for name in eager if eager[name] != static[name]} == {"train"}
    assert static["train"] == "fp32, static sampler"
