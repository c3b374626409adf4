"""The clipped losses and their gradients: by hand, and in expectation."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.algorithms.mathematics.kl import exact_kl
from pipeline.algorithms.mathematics.losses import (
    capped_weight_loss,
    kl_loss,
    kl_slope,
    value_loss,
)

LOG2 = math.log(2)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def slope(loss: Tensor, at: Tensor) -> list[float]:
    """Derivative of each loss by its own entry of `at`."""
    (gradient,) = torch.autograd.grad(loss.sum(), at)
    return [float(value) for value in gradient]


def test_a_capped_weight_keeps_the_gradient_of_its_token() -> None:
    """Ratios 2 and 8, cap 5: -2 x 3 x log 2 and -5 x 3 x log 8."""
    new = f64(LOG2, 3 * LOG2).requires_grad_()
    losses, active = capped_weight_loss(new, f64(0, 0), f64(3, 3), 5.0)
    assert losses.tolist() == pytest.approx([-6 * LOG2, -45 * LOG2])
    assert active.tolist() == [False, True]
    assert slope(losses, new) == pytest.approx([-6.0, -15.0])


@pytest.mark.parametrize(
    ("name", "estimates", "slopes"),
    [("k2", [LOG2**2 / 2, LOG2**2 / 2, 0.0], [LOG2, -LOG2, 0.0]), ("k3", [LOG2 - 0.5, 1 - LOG2, 0.0], [0.5, -1.0, 0])],
)
def test_kl_in_the_loss_by_hand_and_its_slope(name: Any, estimates: list[float], slopes: list[float]) -> None:
    """d = log 2, -log 2 and 0: k3 is 1/2 - 1 + log 2 and 2 - 1 - log 2, its slope 1 - 1/2 and 1 - 2."""
    d = f64(LOG2, -LOG2, 0.0).requires_grad_()
    assert kl_loss(d, name).tolist() == pytest.approx(estimates)
    assert slope(kl_loss(d, name), d) == pytest.approx(slopes)
    assert kl_slope(d, name).tolist() == pytest.approx(slopes)


@given(
    pair=st.integers(2, 5).flatmap(
        lambda size: st.tuples(*[st.lists(st.floats(-3, 3), min_size=size, max_size=size)] * 2)
    )
)
def test_gradients_of_the_estimators_in_expectation(pair: tuple[list[float], list[float]]) -> None:
    """Over tokens that the policy samples, by enumeration: k2 follows KL(pi || ref), k3 KL(ref || pi), and k1
    nothing."""
    z, ref = f64(*pair[0]).requires_grad_(), torch.log_softmax(f64(*pair[1]), -1)
    log_pi = torch.log_softmax(z, -1)
    drawn_from = log_pi.exp().detach()  # sampling does not differentiate
    kinds: tuple[Literal["k2", "k3"], ...] = ("k2", "k3")
    for name in kinds:
        truth = exact_kl(ref, log_pi) if name == "k3" else exact_kl(log_pi, ref)
        mean = (drawn_from * kl_loss(log_pi - ref, name)).sum()
        (ours,), (wanted,) = (torch.autograd.grad(one, z, retain_graph=True) for one in (mean, truth))
        assert torch.allclose(ours, wanted, atol=1e-12)
    (nothing,) = torch.autograd.grad((drawn_from * (log_pi - ref)).sum(), z)
    assert torch.allclose(nothing, torch.zeros_like(nothing), atol=1e-12)


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
    new = f64(vpred).requires_grad_()
    losses, active = value_loss(new, f64(1.0), f64(2.0), 0.2)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is clipped
    assert slope(losses, new) == pytest.approx([wanted])
