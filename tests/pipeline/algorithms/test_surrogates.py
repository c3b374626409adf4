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
from pipeline.algorithms.mathematics.losses import kl_loss
from pipeline.algorithms.registry import SURROGATES

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
