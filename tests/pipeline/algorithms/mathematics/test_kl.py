"""KL estimators and losses, exact KL and entropy: by hand, by enumeration of small vocabularies, at
the ends of the numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import divergence, drawn
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, exact_kl, k2, k3, limited
from pipeline.algorithms.mathematics.losses import kl_loss, kl_slope

LOG2, LOG3 = math.log(2), math.log(3)
logits = st.integers(2, 6).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(-4, 4), min_size=size, max_size=size)] * 2)
)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def test_exact_kl_and_entropy_by_hand() -> None:
    # pi = (1/2, 1/2), ref = (1/4, 3/4): half log 2 plus half log 2/3 = log 2 - log 3 / 2 = 0.1438. The other way round,
    # 0.1308.
    pi, ref = f64(0.5, 0.5).log(), f64(0.25, 0.75).log()
    assert exact_kl(pi, ref).item() == pytest.approx(LOG2 - LOG3 / 2)
    assert exact_kl(ref, pi).item() == pytest.approx(0.25 * -LOG2 + 0.75 * (LOG3 - LOG2))
    rows = torch.stack([torch.stack([pi, ref]), torch.stack([pi, pi])])  # any shape in front of the vocabulary
    assert exact_kl(rows, pi.expand(2, 2, 2)).tolist() == [pytest.approx([0.0, 0.1308], abs=1e-4), [0.0, 0.0]]
    assert entropy(f64(0.5, 0.25, 0.25).log()).item() == pytest.approx(1.5 * LOG2)
    assert entropy(f64(1 - 1e-12, 1e-12).log()).item() == pytest.approx(0.0, abs=1e-10)


def test_a_token_out_of_reach_counts_nothing() -> None:
    """Softmax gives such a token probability 0 but a finite log-probability, and 0 times that is 0."""
    pi, ref = torch.log_softmax(f64(0.0, 0.0, -1e4), -1), torch.log_softmax(f64(0.0, 0.0, 0.0), -1)
    assert exact_kl(pi, ref).item() == pytest.approx(math.log(1.5))
    assert entropy(pi).item() == pytest.approx(LOG2)


def test_k3_keeps_its_digits_for_small_log_ratios() -> None:
    # exp(-d) - 1 + d is d^2 / 2 - d^3 / 6 + ...; in fp32, exp(-1e-4) alone is off by 6e-8, twelve times the answer.
    assert k3(torch.tensor([1e-4])).item() == pytest.approx(0.5e-8, rel=0.1)
    assert k3(torch.tensor([-1e-2])).item() == pytest.approx(0.5e-4 + 1e-6 / 6, rel=1e-3)


@given(pair=logits)
def test_in_expectation(pair: tuple[list[float], list[float]]) -> None:
    """Sum over the vocabulary: k1 and k3 are unbiased, k2 is half the mean square; samples of an older policy
    need its ratio, as `policy/kl_ref_per_token` has it; KL and entropy add up over independent choices."""
    pi, ref = (torch.log_softmax(f64(*one), -1) for one in pair)
    truth, probabilities = exact_kl(pi, ref).item(), pi.exp()
    assert truth == pytest.approx(divergence(probabilities.tolist(), ref.exp().tolist()), abs=1e-12)
    assert truth >= -1e-14
    for estimate in (pi - ref, k3(pi - ref)):
        assert (probabilities * estimate).sum().item() == pytest.approx(truth, abs=1e-12)
    square = sum(p * math.log(p / q) ** 2 for p, q in zip(probabilities.tolist(), ref.exp().tolist(), strict=True))
    assert (probabilities * k2(pi - ref)).sum().item() == pytest.approx(square / 2, abs=1e-12)
    old = torch.log_softmax(pi.flip(0) + ref, -1)
    weighted = (old.exp() * (pi - old).exp() * (pi - ref)).sum()
    assert weighted.item() == pytest.approx(truth, abs=1e-12)
    joint_pi, joint_ref = ((one[:, None] + one[None, :]).flatten() for one in (pi, ref))
    assert exact_kl(joint_pi, joint_ref).item() == pytest.approx(2 * truth, abs=1e-12)
    uniform = torch.full((len(pi),), -math.log(len(pi)), dtype=torch.float64)
    assert entropy(pi).item() == pytest.approx(math.log(len(pi)) - exact_kl(pi, uniform).item(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_k2_and_k3_are_never_negative_for_any_16_bit_number(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    assert len(every) > 60_000
    assert bool((k2(every) >= 0).all())
    assert bool((k3(every) >= 0).all())


def test_a_limited_log_ratio_is_itself_up_to_the_limit_and_has_its_gradient_beyond() -> None:
    """Equal to the bit, so that the limit moves no ordinary training."""
    ordinary = torch.cat([drawn(200, seed=1, dtype=torch.float32) * 10, torch.tensor([-200.0, -0.0, 0.0, 80.0])])
    d = torch.cat([ordinary, torch.tensor([88.8, 1e4])]).requires_grad_()
    found = limited(d)
    assert torch.equal(found[:-2], ordinary)
    assert found[-2:].tolist() == [80.0, 80.0]
    (gradient,) = torch.autograd.grad(found.sum(), d)
    assert torch.equal(gradient, torch.ones_like(d))


@pytest.mark.parametrize(
    ("name", "estimates", "slopes"),
    [("k2", [LOG2**2 / 2, LOG2**2 / 2, 0.0], [LOG2, -LOG2, 0.0]), ("k3", [LOG2 - 0.5, 1 - LOG2, 0.0], [0.5, -1.0, 0])],
)
def test_kl_in_the_loss_by_hand_and_its_slope(name: Any, estimates: list[float], slopes: list[float]) -> None:
    """d = log 2, -log 2 and 0: k3 is 1/2 - 1 + log 2 and 2 - 1 - log 2, its slope 1 - 1/2 and 1 - 2."""
    d = f64(LOG2, -LOG2, 0.0).requires_grad_()
    assert kl_loss(d, name).tolist() == pytest.approx(estimates)
    assert torch.autograd.grad(kl_loss(d, name).sum(), d)[0].tolist() == pytest.approx(slopes)
    assert kl_slope(d, name).tolist() == pytest.approx(slopes)


@given(pair=logits)
def test_gradients_of_the_estimators_in_expectation(pair: tuple[list[float], list[float]]) -> None:
    """Over tokens that the policy samples, by enumeration: k2 follows KL(pi || ref), k3 KL(ref || pi), and k1
    nothing."""
    z, ref = f64(*pair[0]).requires_grad_(), torch.log_softmax(f64(*pair[1]), -1)
    log_pi = torch.log_softmax(z, -1)
    drawn_from = log_pi.exp().detach()  # sampling does not differentiate
    truths: dict[Any, Tensor] = {"k2": exact_kl(log_pi, ref), "k3": exact_kl(ref, log_pi)}
    for name, truth in truths.items():
        mean = (drawn_from * kl_loss(log_pi - ref, name)).sum()
        (ours,), (wanted,) = (torch.autograd.grad(one, z, retain_graph=True) for one in (mean, truth))
        assert torch.allclose(ours, wanted, atol=1e-12)
    (nothing,) = torch.autograd.grad((drawn_from * (log_pi - ref)).sum(), z)
    assert torch.allclose(nothing, torch.zeros_like(nothing), atol=1e-12)
