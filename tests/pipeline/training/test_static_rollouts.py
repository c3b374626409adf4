"""Whole trainings whose rollouts the static sampler draws: on a CPU they are those of the eager one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke
from tinytrial import CONTROLS, Killed, Killer, run, trainer

from pipeline.models.sampler import EagerSampler
from pipeline.models.static_sampler import StaticSampler
from pipeline.run.metrics import METRICS
from pipeline.stages import STAGES

STATIC = {"sampler": "static"}
OWN = {"objective/sampler_gap", "objective/sampler_ratio"}


@pytest.mark.parametrize("control", ["fixed", "lora", "remax", "vine_ppo"])  # the last two sample beside the rollout
def test_a_training_is_that_of_the_eager_sampler(control: str, tmp_path: Path) -> None:
    knobs = {"train__steps": 12, "train__temperature": 0.9, **CONTROLS[control]}
    outcome, series, weights = run(tmp_path / "static", runtime=STATIC, **knobs)
    wanted_outcome, wanted, wanted_weights = run(tmp_path / "eager", **knobs)
    assert (outcome.status, outcome.tokens) == (wanted_outcome.status, wanted_outcome.tokens)
    assert {step: {k: v for k, v in row.items() if k not in OWN} for step, row in series.items()} == wanted
    assert all(torch.equal(weights[name], tensor) for name, tensor in wanted_weights.items())
    rollouts = [row for row in series.values() if "objective/kl" in row]
    assert rollouts
    for row in rollouts:
        assert OWN <= row.keys() <= METRICS.keys()
        assert 0 <= row["objective/sampler_gap"] < 1e-5  # an adapter is merged, which rounds
        assert row["objective/sampler_ratio"] == pytest.approx(1.0, abs=1e-5)


def test_a_sampler_that_lags_behind_is_seen_in_its_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticSampler, "refresh", lambda self: None)
    monkeypatch.setattr(StaticSampler, "rest", lambda self: None)
    _, series, _ = run(tmp_path, runtime=STATIC, train__steps=12)
    gaps = [row["objective/sampler_gap"] for row in series.values() if "objective/kl" in row]
    assert gaps[0] < 1e-5 < 1e-3 < gaps[1] < gaps[2]


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"runtime": STATIC, "train__steps": 16}
    _, wanted, weights = run(tmp_path / "whole", **knobs)
    with pytest.raises(Killed):
        trainer(tmp_path / "killed", reporter=Killer(3), **knobs).run()
    _, series, resumed = run(tmp_path / "killed", **knobs)
    assert series == wanted
    assert all(torch.equal(resumed[name], tensor) for name, tensor in weights.items())


def test_a_network_that_does_not_allow_it_is_sampled_eagerly_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.models.sampler_choice.ARCHITECTURES", frozenset())
    watch = Recorder()
    one = trainer(tmp_path, reporter=watch, runtime=STATIC)
    assert isinstance(one.rollout_context.sampler, EagerSampler)
    assert [line for line in watch.warnings if "sampled by the eager sampler" in line]


def test_the_sampler_is_part_of_the_identity_of_training_alone() -> None:
    def precisions(**changes: Any) -> dict[str, str]:
        config = smoke(**changes)
        return {stage.name: stage.precision(config) for stage in STAGES if stage.precision}

    eager, static = precisions(), precisions(runtime__sampler="static")
    assert set(eager.values()) == {"fp32"}
    assert precisions(runtime__sampler="eager") == eager
    assert {name for name in eager if eager[name] != static[name]} == {"train"}
    assert static["train"] == "fp32, static sampler"
