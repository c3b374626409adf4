"""Losses by trust region, and that of a critic: by hand, their gradients at ratio 1, and numbers that stay finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn
from torch import Tensor

from pipeline.algorithms.base import surrogate_of
from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.algorithms.mathematics.losses import value_loss
from pipeline.training.surrogate import response_weights

NO_RATIO = {"algorithm__ratio": "none", "algorithm__trust_region": "none", "train__num_epochs": 1}
CISPO, NONE = {"algorithm__trust_region": "cispo"}, {"algorithm__trust_region": "none"}
LOG2 = math.log(2)


def losses(new: Tensor, old: Tensor, advantages: Tensor, knobs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    return surrogate_of(trial_config(**knobs).algorithm)(new, old, advantages)


def gradient(new: Tensor, old: Tensor, advantages: Tensor, knobs: dict[str, Any]) -> Tensor:
    leaf = new.clone().requires_grad_()
    return torch.autograd.grad(losses(leaf, old, advantages, knobs)[0].sum(), leaf)[0]


def test_another_bound_above_than_below_and_the_ratio_as_a_weight() -> None:
    """Ratio 2 is cut at 1.28 where it was good, ratio 1/2 at 0.8 where it was bad."""
    new, old, advantages = torch.tensor([LOG2, -LOG2]), torch.zeros(2), torch.tensor([1.0, -1.0])
    loss, metrics = losses(new, old, advantages, {"algorithm__clip__epsilon_high": 0.28})
    assert loss.tolist() == pytest.approx([-1.28, 0.8])
    assert metrics["policy/pg_clipfrac"].tolist() == [True, True]
    assert gradient(new, old, advantages, NONE).tolist() == pytest.approx([-2.0, 0.5])
    assert gradient(new, old, advantages, NO_RATIO).tolist() == pytest.approx([-1.0, 1.0])
    weighted, metrics = losses(new, old, 3 * advantages, CISPO)  # -2 x 3 x log 2 and 1/2 x 3 x -log 2
    assert weighted.tolist() == pytest.approx([-6 * LOG2, -1.5 * LOG2])
    assert gradient(new, old, 3 * advantages, CISPO).tolist() == pytest.approx([-6.0, 1.5])


@pytest.mark.parametrize("name", [name for name, region in TRUST_REGIONS.items() if not region.pairwise])
def test_at_ratio_one_all_are_the_policy_gradient(name: str) -> None:
    old, advantages = -drawn(9, seed=1).abs(), drawn(9, seed=2)
    found = gradient(old, old, advantages, {"algorithm__trust_region": name, "critic__kind": "separate"})
    torch.testing.assert_close(found, -advantages, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("how", "weights"),
    [
        ("token_mean", [1 / 8, 3 / 8]),
        ("seq_mean_token_mean", [1 / 4, 1 / 4]),
        ("seq_mean_token_sum", [1 / 4, 3 / 4]),
        ("constant", [1 / 20, 3 / 20]),
    ],
)
def test_weights_of_responses_by_hand(how: str, weights: list[float]) -> None:
    """1 and 3 tokens, of a mini-batch of 8 tokens in 4 responses, which can have 5."""
    cfg = trial_config(algorithm__aggregation=how).algorithm
    found = response_weights(torch.tensor([1, 3]), torch.tensor(8), 4, 5, cfg)
    assert (found / 8).tolist() == pytest.approx(weights)


@pytest.mark.parametrize(
    ("knobs", "advantage", "loss", "slope"),
    [
        ({}, 2.0, -2.4, 0.0),
        ({}, 0.0, 0.0, 0.0),
        (CISPO, 2.0, 10.0, -10.0),
        (NONE, 0.0, 0.0, 0.0),
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
    ("vpred", "loss", "clipped", "wanted"),
    [
        (1.1, 0.5 * 0.9**2, False, -0.9),  # within 0.2 of the value, 1
        (1.5, 0.5 * 0.8**2, True, 0.0),  # towards the return, 2, a step counts as 0.2, and beyond there is no gain
        (0.5, 0.5 * 1.5**2, False, -1.5),  # away from it the error itself is the larger one
        (4.0, 0.5 * 2.0**2, False, 2.0),  # nor may a step pass it by
    ],
)
def test_value_loss_by_hand(vpred: float, loss: float, clipped: bool, wanted: float) -> None:
    new = torch.tensor([vpred]).requires_grad_()
    losses, active = value_loss(new, torch.tensor([1.0]), torch.tensor([2.0]), 0.2)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is clipped
    assert torch.autograd.grad(losses.sum(), new)[0].item() == pytest.approx(wanted)
