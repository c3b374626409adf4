"""KL estimators, exact KL and entropy: by hand, by enumeration of small vocabularies, in each dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import DTYPES, EPS32, close, divergence, drawn, eps, exact
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, exact_kl, k1, k2, k3

LOG2, LOG3 = math.log(2), math.log(3)
logits = st.integers(2, 6).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(-4, 4), min_size=size, max_size=size)] * 2)
)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def two(pair: tuple[list[float], list[float]]) -> tuple[Tensor, Tensor]:
    """Two log-distributions over one small vocabulary."""
    pi, ref = (torch.log_softmax(f64(*one), -1) for one in pair)
    return pi, ref


# --- by hand -----------------------------------------------------------------------------------------------


def test_estimators_by_hand() -> None:
    # d = log 2: the policy finds the token twice as likely. k3 = 1/2 - 1 + log 2; for d = -log 2, 2 - 1 - log 2.
    d = f64(LOG2, -LOG2, 0.0)
    assert k1(d).tolist() == [LOG2, -LOG2, 0.0]
    assert k2(d).tolist() == pytest.approx([LOG2**2 / 2, LOG2**2 / 2, 0.0])
    assert k3(d).tolist() == pytest.approx([LOG2 - 0.5, 1 - LOG2, 0.0])


def test_exact_kl_by_hand() -> None:
    # pi = (1/2, 1/2), ref = (1/4, 3/4): half log 2 plus half log 2/3 = log 2 - log 3 / 2 = 0.1438. The other way round,
    # 0.1308.
    pi, ref = f64(0.5, 0.5).log(), f64(0.25, 0.75).log()
    assert exact_kl(pi, ref).item() == pytest.approx(LOG2 - LOG3 / 2)
    assert exact_kl(ref, pi).item() == pytest.approx(0.25 * -LOG2 + 0.75 * (LOG3 - LOG2))
    rows = torch.stack([torch.stack([pi, ref]), torch.stack([pi, pi])])  # any shape in front of the vocabulary
    assert exact_kl(rows, pi.expand(2, 2, 2)).tolist() == [pytest.approx([0.0, 0.1308], abs=1e-4), [0.0, 0.0]]


def test_entropy_by_hand() -> None:
    # (1/2, 1/4, 1/4): half of log 2, half of log 4.
    assert entropy(f64(0.5, 0.25, 0.25).log()).item() == pytest.approx(1.5 * LOG2)
    assert entropy(f64(0.25, 0.25, 0.25, 0.25).log()).item() == pytest.approx(2 * LOG2)
    assert entropy(f64(1 - 1e-12, 1e-12).log()).item() == pytest.approx(0.0, abs=1e-10)
    assert entropy(torch.log_softmax(drawn(2, 3, 5, seed=0), -1)).shape == (2, 3)


def test_a_token_out_of_reach_counts_nothing() -> None:
    """Softmax gives such a token probability 0 but a finite log-probability, and 0 times that is 0."""
    pi, ref = torch.log_softmax(f64(0.0, 0.0, -1e4), -1), torch.log_softmax(f64(0.0, 0.0, 0.0), -1)
    assert exact_kl(pi, ref).item() == pytest.approx(math.log(1.5))
    assert entropy(pi).item() == pytest.approx(LOG2)


def test_k3_keeps_its_digits_for_small_log_ratios() -> None:
    # exp(-d) - 1 + d is d^2 / 2 - d^3 / 6 + ...; in fp32, exp(-1e-4) alone is off by 6e-8, twelve times the answer.
    assert k3(torch.tensor([1e-4])).item() == pytest.approx(0.5e-8, rel=0.1)
    assert k3(torch.tensor([-1e-2])).item() == pytest.approx(0.5e-4 + 1e-6 / 6, rel=1e-3)


# --- by enumeration ----------------------------------------------------------------------------------------


@given(pair=logits)
def test_k1_and_k3_are_unbiased_and_k2_is_the_mean_square(pair: tuple[list[float], list[float]]) -> None:
    """The expectation under pi is a sum over the vocabulary; nothing is sampled."""
    pi, ref = two(pair)
    truth = divergence(pi.exp().tolist(), ref.exp().tolist())
    assert exact_kl(pi, ref).item() == pytest.approx(truth, abs=1e-12)
    for estimator in (k1, k3):
        assert (pi.exp() * estimator(pi - ref)).sum().item() == pytest.approx(truth, abs=1e-12)
    square = sum(p * math.log(p / q) ** 2 for p, q in zip(pi.exp().tolist(), ref.exp().tolist(), strict=True))
    assert (pi.exp() * k2(pi - ref)).sum().item() == pytest.approx(square / 2, abs=1e-12)


def test_k2_is_biased_when_the_two_are_far_apart() -> None:
    # As in the example by hand: half log^2 2 / 2 plus half log^2 (2/3) / 2 = 0.1612, and the KL is 0.1438.
    d = f64(LOG2, LOG2 - LOG3)
    assert (0.5 * k2(d)).sum().item() == pytest.approx((LOG2**2 + (LOG3 - LOG2) ** 2) / 4)
    assert (0.5 * k2(d)).sum().item() > 1.1 * (LOG2 - LOG3 / 2)


@given(pair=logits)
def test_samples_of_an_older_policy_need_its_ratio(pair: tuple[list[float], list[float]]) -> None:
    """What `policy/kl_ref_per_token` rests on: E_old[pi/old (log pi - log ref)] = KL(pi || ref)."""
    pi, ref = two(pair)
    old = torch.log_softmax(pi.flip(0) + ref, -1)
    weighted = (old.exp() * (pi - old).exp() * k1(pi - ref)).sum()
    assert weighted.item() == pytest.approx(exact_kl(pi, ref).item(), abs=1e-12)


@given(pair=logits)
def test_divergence_is_never_negative_and_0_on_equals(pair: tuple[list[float], list[float]]) -> None:
    pi, ref = two(pair)
    assert exact_kl(pi, ref).item() >= -1e-14
    assert exact_kl(pi, pi).item() == 0.0
    assert exact_kl(pi, ref).item() >= 0.5 * (pi.exp() - ref.exp()).abs().sum().item() ** 2 - 1e-14  # Pinsker


@given(pair=logits)
def test_independent_choices_add_up(pair: tuple[list[float], list[float]]) -> None:
    """KL and entropy of two tokens drawn one after the other are sums: why nats per sequence is a sum over tokens."""
    pi, ref = two(pair)
    joint_pi, joint_ref = ((one[:, None] + one[None, :]).flatten() for one in (pi, ref))
    assert exact_kl(joint_pi, joint_ref).item() == pytest.approx(2 * exact_kl(pi, ref).item(), abs=1e-12)
    assert entropy(joint_pi).item() == pytest.approx(2 * entropy(pi).item(), abs=1e-12)


@given(pair=logits)
def test_entropy_is_between_0_and_that_of_the_uniform(pair: tuple[list[float], list[float]]) -> None:
    pi, _ = two(pair)
    size = len(pi)
    assert 0 <= entropy(pi).item() <= math.log(size) + 1e-14
    uniform = torch.full((size,), -math.log(size), dtype=torch.float64)
    assert entropy(pi).item() == pytest.approx(math.log(size) - exact_kl(pi, uniform).item(), abs=1e-12)


@given(pair=logits)
def test_the_names_of_the_tokens_do_not_matter(pair: tuple[list[float], list[float]]) -> None:
    pi, ref = two(pair)
    assert exact_kl(pi.flip(0), ref.flip(0)).item() == pytest.approx(exact_kl(pi, ref).item(), abs=1e-13)
    assert entropy(pi.flip(0)).item() == pytest.approx(entropy(pi).item(), abs=1e-13)


# --- in each dtype -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_k2_and_k3_are_never_negative_for_any_16_bit_number(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    assert len(every) > 60_000
    assert bool((k2(every) >= 0).all())
    assert bool((k3(every) >= 0).all())


@given(d=st.floats(-20, 20, width=32))
def test_k3_is_never_negative_in_fp32(d: float) -> None:
    """Rounding of expm1 may undershoot -d by one last digit of d, and by no more."""
    assert k3(torch.tensor(d)).item() >= -EPS32 * abs(d)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_estimators_against_plain_formulas(dtype: torch.dtype) -> None:
    d = drawn(200, seed=0, dtype=dtype)
    ds = [float(value) for value in exact(d)]
    assert {estimator(d).dtype for estimator in (k1, k2, k3)} == {dtype}
    assert torch.equal(k1(d), d)
    # Two products; the half is exact.
    close(k2(d), [x * x / 2 for x in ds], [eps(dtype) * x * x / 2 for x in ds])
    # expm1 to its last digit, then the sum to its own.
    close(
        k3(d), [math.expm1(-x) + x for x in ds], [eps(dtype) * (abs(math.expm1(-x)) + math.expm1(-x) + x) for x in ds]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_over_the_vocabulary_against_plain_loops(dtype: torch.dtype) -> None:
    pi, ref = (torch.log_softmax(drawn(5, 11, seed=seed), -1).to(dtype) for seed in (1, 2))
    kl, spread = exact_kl(pi, ref), entropy(pi)
    assert kl.dtype == spread.dtype == dtype
    for row in range(5):
        p, q = ([float(value) for value in exact(one[row])] for one in (pi, ref))
        # Three roundings a term: the exponential (to one unit), the difference, the product; one more of the sum.
        size = sum(math.exp(a) * (abs(a) + abs(b)) for a, b in zip(p, q, strict=True))
        close(
            kl[row],
            [sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))],
            (2.5 * eps(dtype) + 11 * EPS32) * size,
        )
        close(spread[row], [-sum(math.exp(a) * a for a in p)], (2.5 * eps(dtype) + 11 * EPS32) * size)
