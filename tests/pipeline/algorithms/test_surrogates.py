"""Losses by trust region: by hand, and the identities of their gradients at ratio 1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn
from torch import Tensor

from pipeline.algorithms.base import Behaviour
from pipeline.algorithms.mathematics.kl import limited
from pipeline.algorithms.mathematics.losses import group_kl_loss, kl_loss
from pipeline.algorithms.registry import SURROGATES
from pipeline.algorithms.terms import Tokens, step_metrics
from pipeline.training.part import TokenLosses
from pipeline.training.parts.old_kl import OldKl

NO_RATIO = {"algorithm__ratio": "none", "algorithm__trust_region": "none", "train__num_epochs": 1}
CISPO = {"algorithm__trust_region": "cispo"}
LOG2 = math.log(2)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def losses(new: Tensor, old: Tensor, advantages: Tensor, knobs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    cfg = trial_config(**knobs).algorithm
    return SURROGATES[cfg.trust_region](Behaviour(old, advantages), new, cfg)


def gradient(new: Tensor, old: Tensor, advantages: Tensor, knobs: dict[str, Any]) -> Tensor:
    leaf = new.clone().requires_grad_()
    return torch.autograd.grad(losses(leaf, old, advantages, knobs)[0].sum(), leaf)[0]


def test_another_bound_above_than_below() -> None:
    """Ratio 2 is cut at 1.28 where it was good, ratio 1/2 at 0.8 where it was bad."""
    new, old, advantages = f64(LOG2, -LOG2), f64(0, 0), f64(1, -1)
    loss, metrics = losses(new, old, advantages, {"algorithm__cliprange_high": 0.28})
    assert loss.tolist() == pytest.approx([-1.28, 0.8])
    assert metrics["policy/pg_clipfrac"].tolist() == [True, True]


def test_cispo_by_hand() -> None:
    """Ratios 2 and 8, cap 5: -2 x 3 x log 2 and -5 x 3 x log 8; a capped token keeps its gradient, -15."""
    new, old, advantages = f64(LOG2, 3 * LOG2), f64(0, 0), f64(3, 3)
    loss, metrics = losses(new, old, advantages, CISPO)
    assert loss.tolist() == pytest.approx([-6 * LOG2, -45 * LOG2])
    assert metrics["policy/pg_clipfrac"].tolist() == [False, True]
    assert gradient(new, old, advantages, CISPO).tolist() == pytest.approx([-6.0, -15.0])


@pytest.mark.parametrize("knobs", [{}, CISPO, {"algorithm__trust_region": "none"}])
def test_at_ratio_one_all_are_reinforce(knobs: dict[str, Any]) -> None:
    old, advantages = -drawn(9, seed=1).abs(), drawn(9, seed=2)
    torch.testing.assert_close(
        gradient(old, old, advantages, knobs), gradient(old, old, advantages, NO_RATIO), rtol=1e-12, atol=1e-12
    )
    assert gradient(old, old, advantages, NO_RATIO).tolist() == (-advantages).tolist()


def test_without_a_bound_the_gradient_is_weighted_by_the_ratio() -> None:
    new, old, advantages = f64(LOG2), f64(0), f64(3)
    assert gradient(new, old, advantages, {"algorithm__trust_region": "none"}).tolist() == pytest.approx([-6.0])
    assert gradient(new, old, advantages, NO_RATIO).tolist() == pytest.approx([-3.0])


def test_k3_times_the_ratio_has_the_gradient_of_k2_weighted_by_it() -> None:
    """And at ratio 1 that of k2 itself."""
    new, old, ref = (-drawn(9, seed=seed).abs().double().requires_grad_(seed == 1) for seed in (1, 2, 3))
    (found,) = torch.autograd.grad(kl_loss(new, ref, old, "ratio_k3").sum(), new)
    torch.testing.assert_close(found, ((new - old).exp() * (new - ref)).detach(), rtol=1e-9, atol=1e-12)
    (alike,) = torch.autograd.grad(kl_loss(new, ref, new.detach(), "ratio_k3").sum(), new)
    (k2,) = torch.autograd.grad(kl_loss(new, ref, old, "k2").sum(), new)
    torch.testing.assert_close(alike, k2, rtol=1e-9, atol=1e-12)


def test_a_limited_log_ratio_is_itself_up_to_the_limit_and_has_its_gradient_beyond() -> None:
    """To the bit, so that the limit moves no ordinary training."""
    ordinary = torch.cat([drawn(200, seed=1, dtype=torch.float32) * 10, torch.tensor([-200.0, -0.0, 0.0, 80.0])])
    d = torch.cat([ordinary, torch.tensor([88.8, 1e4])]).requires_grad_()
    found = limited(d)
    assert torch.equal(found[:-2], ordinary)
    assert found[-2:].tolist() == [80.0, 80.0]
    (gradient,) = torch.autograd.grad(found.sum(), d)
    assert torch.equal(gradient, torch.ones_like(d))


@pytest.mark.parametrize(
    ("knobs", "advantage", "loss", "slope"),
    [
        ({}, 2.0, -2.4, 0.0),
        ({}, 0.0, 0.0, 0.0),
        ({"algorithm__dual_clip": 3.0}, 2.0, -2.4, 0.0),
        ({"algorithm__dual_clip": 3.0}, -2.0, 6.0, 0.0),
        (CISPO, 2.0, 10.0, -10.0),
        ({"algorithm__trust_region": "none"}, 0.0, 0.0, 0.0),
        (NO_RATIO, 2.0, 2.0, -2.0),
    ],
)
def test_bounded_losses_keep_value_and_gradient_where_the_ratio_is_beyond_fp32(
    knobs: dict[str, Any], advantage: float, loss: float, slope: float
) -> None:
    """exp(120) is infinite in fp32, and infinity times 0 is not a number."""
    new, old, advantages = (torch.tensor([x]) for x in (-1.0, -121.0, advantage))
    assert losses(new, old, advantages, knobs)[0].item() == pytest.approx(loss)
    assert gradient(new, old, advantages, knobs).item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("knobs", "advantage"), [({}, -2.0), *(({"algorithm__trust_region": "none"}, a) for a in (-2.0, 2.0))]
)
def test_unbounded_losses_stay_finite_and_push_the_right_way(knobs: dict[str, Any], advantage: float) -> None:
    new, old, advantages = (torch.tensor([x]) for x in (-1.0, -121.0, advantage))
    loss, slope = losses(new, old, advantages, knobs)[0].item(), gradient(new, old, advantages, knobs).item()
    assert math.isfinite(loss)
    assert loss == pytest.approx(slope)
    assert slope * advantage < -1e30


@pytest.mark.parametrize("estimator", ["k3", "ratio_k3"])
def test_kl_losses_stay_finite_where_the_reference_is_far(estimator: Any) -> None:
    new = torch.tensor([-121.0, -1.0], requires_grad=True)
    loss = kl_loss(new, torch.tensor([-1.0, -121.0]), torch.tensor([-1.0, -121.0]), estimator)
    (slope,) = torch.autograd.grad(loss.sum(), new)
    assert torch.isfinite(torch.stack([loss, slope])).all()
    assert torch.isfinite(torch.stack(group_kl_loss(torch.tensor([-120.0, 120.0]), "k3"))).all()


@pytest.mark.parametrize("moved", [-120.0, 120.0])
def test_a_step_far_from_the_rollout_is_measured_in_finite_numbers(moved: float) -> None:
    old = torch.tensor([-121.0])
    batch = Tokens(old, old, old, None, None)
    assert all(bool(torch.isfinite(column).all()) for column in step_metrics(batch, old + moved).values())
    new = (old + moved).requires_grad_()
    tokens = TokenLosses(old, old, new, lambda: new, lambda losses: losses)
    penalty = OldKl(trial_config(algorithm__old_kl_coef=1.0)).loss(tokens)
    assert penalty is not None
    assert torch.isfinite(torch.autograd.grad(penalty.sum(), new)[0]).all()
