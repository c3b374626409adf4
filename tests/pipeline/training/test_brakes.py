"""What holds the policy back: by which KL, and which networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import preset, trainer

from pipeline.algorithms.mathematics.controllers import lr_schedule
from pipeline.training.rollout import collect
from pipeline.training.update import accumulate, apply
from pipeline.training.whole_rollout import moved_kl


@pytest.mark.parametrize("knobs", [{"optimiser__guard": True, "optimiser__guard_factor": 0.25}, {"kl__hinge": 0.01}])
@pytest.mark.parametrize(("kind", "braked"), [("shared", [0.25, 0.25]), ("separate", [0.25, 1.0, 1.0])])
def test_guard_and_hinge_brake_the_policy_and_no_separate_critic(
    tmp_path: Path, kind: str, braked: list[float], knobs: dict[str, Any]
) -> None:
    one = trainer(tmp_path, critic__kind=kind, **knobs)
    one.parts.after({"objective/kl_per_token": 1.0}, True)
    for parameter in one.actor.parameters():
        parameter.grad = torch.ones_like(parameter)
    planned = lr_schedule(one.cfg, 6)
    apply(one.learner, 6, planned, one.parts.step({"policy/kl_ref_per_token": 0.04}, planned))
    assert all(part.remaining == one.cfg.optimiser.guard_steps - 1 for part in one.parts if part.name == "guard")
    rates = [group["lr"] / group["base_lr"] for group in one.learner.steps.optimiser.param_groups]
    assert rates == pytest.approx([(1 - 6 / 24) * factor for factor in braked])


@pytest.mark.parametrize(("per_sequence", "per_token", "steps"), [(10.0, 0.01, 0), (0.01, 0.02, 7)])
def test_the_guard_is_fed_the_kl_per_token(tmp_path: Path, per_sequence: float, per_token: float, steps: int) -> None:
    one = trainer(tmp_path, optimiser__guard=True, optimiser__guard_steps=7)
    rollout = one._rollout()
    kl = {"objective/kl": per_sequence, "objective/kl_per_token": per_token}
    one._learn(replace(rollout, metrics={**rollout.metrics, **kl}), lambda step, values: None)
    assert one.parts["guard"].remaining == steps


def test_adaptive_coefficients_are_fed_the_numbers_that_their_targets_are_of(tmp_path: Path) -> None:
    """Targets of 6 nats per sequence and 2 nats per token; 8 episodes a rollout, horizons of 20."""
    adaptive = {"control": "adaptive", "horizon": 20.0}
    knobs = {f"{section}__{key}": value for section in ("kl", "entropy") for key, value in adaptive.items()}
    one = trainer(tmp_path, **knobs, kl__beta=0.1, kl__target=6.0, entropy__coef=0.1, entropy__target=2.0)
    rollout = one._rollout()
    seen = {"objective/kl": 12.0, "objective/kl_per_token": 0.0}
    seen |= {"objective/entropy": 10.0, "objective/entropy_per_token": 1.0}
    one._learn(replace(rollout, metrics={**rollout.metrics, **seen}), lambda step, values: None)
    assert (one.parts["kl"].coef, one.parts["entropy"].coef) == pytest.approx((0.1 * (1 + 0.2 * 8 / 20),) * 2)


def test_before_a_step_no_kl_has_been_moved_at_any_temperature(tmp_path: Path) -> None:
    one = trainer(tmp_path, **preset("ppo_penalty"), train__temperature=0.5)
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.0)
    assert moved_kl(rollout, one.learner) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", ["rloo", "dapo"])
def test_a_clipped_ratio_beyond_fp32_moves_nothing(tmp_path: Path, name: str) -> None:
    """Each token has become 100 nats likelier, and each response was good."""
    one = trainer(tmp_path, **preset(name), kl__beta=0.0)
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.0)
    measured = replace(rollout.measured, logprobs=rollout.measured.logprobs - 100.0)
    good = replace(rollout, measured=measured, advantages=torch.ones_like(rollout.advantages))
    metrics = accumulate(good, torch.arange(8), one.learner)
    assert metrics["policy/pg_clipfrac"] == 1
    assert all(bool((parameter.grad == 0).all()) for parameter in one.actor.parameters() if parameter.grad is not None)
