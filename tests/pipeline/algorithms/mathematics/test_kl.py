from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import divergence, drawn, f64, grid, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, exact_kl, k2, k3, limited
from pipeline.algorithms.mathematics.losses import kl_loss, kl_slope
from pipeline.algorithms.mathematics.shaping import (
    credited,
    group_ends,
    group_non_score_reward,
    group_numbers,
    group_sums,
    handle_missing_eos,
    non_score_reward,
    overlong,
    token_rewards,
    with_floor,
)

LOG2, LOG3 = math.log(2), math.log(3)
logits = st.integers(2, 6).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(-4, 4), min_size=size, max_size=size)] * 2)
)


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


NAN = float("nan")


def test_missing_eos_by_hand() -> None:
    scores, ended = f64(2.0, 3.0, -4.0), torch.tensor([True, False, False])
    assert handle_missing_eos(scores, ended, "replace", 1.0).tolist() == [2.0, -1.0, -1.0]
    assert handle_missing_eos(scores, ended, "none", 1.0).tolist() == [2.0, 3.0, -4.0]


def test_overlong_by_hand() -> None:
    """Half of 8 tokens: none off up to 4, half of the penalty off at 6, all of it at 8 and where the response is
    cut."""
    lengths, ended = torch.tensor([3, 4, 6, 8, 8]), torch.tensor([True, True, True, True, False])
    found = overlong(f64(1, 1, 1, 1, 1), lengths, ended, 8, 0.5, 3.0)
    assert found.tolist() == [1.0, 1.0, -0.5, -2.0, -2.0]
    assert overlong(found, lengths, ended, 8, 0.0, 3.0) is found


def test_score_by_hand_on_the_last_valid_token() -> None:
    mask = prefix([[1, 2], [1, 2, 3], [1]])
    penalty = grid([[-0.1, 0.05], [0.0, -0.1, 0.0], [0.2]], junk=0.0)
    rewards = token_rewards(f64(5.0, 7.0, -1.0), penalty, mask)
    expected = [[-0.1, 5.05, 0.0], [0.0, -0.1, 7.0], [-0.8, 0.0, 0.0]]
    assert rewards.tolist() == [pytest.approx(row) for row in expected]
    with pytest.raises(ValueError, match="no valid token"):
        token_rewards(f64(1.0, 1.0), torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))


def test_the_part_with_a_floor_is_added_and_the_scale_kept() -> None:
    proxy, part = f64(1.0, -2.0), f64(-3.0, 4.0)
    assert with_floor(proxy, part, 0.0).tolist() == [1.0, -2.0]
    assert with_floor(proxy, part, 3.0).tolist() == [-2.0, 2.5]


def test_penalty_by_hand() -> None:
    # The first token is e times as likely as under the reference and costs 0.1; the second is less likely and earns
    # 0.05.
    logprobs, ref = grid([[-1.0, -2.0], [-1.0, -1.0, -1.0]]), grid([[-2.0, -1.5], [-1.0, -2.0, -1.0]])
    mask = prefix([[1, 2], [1, 2, 3]])
    penalty = non_score_reward(logprobs, ref, mask, 0.1)
    assert penalty.tolist() == [pytest.approx([-0.1, 0.05, 0.0]), pytest.approx([0.0, -0.1, 0.0])]


def test_penalty_on_groups_by_hand() -> None:
    """Groups of log-ratios (1, -0.4) and (0.2); and of (0.5), (-0.3, 0.1, 0.5), the last of them cut."""
    d, mask = grid([[1.0, -0.4, 0.2], [0.5, -0.3, 0.1, 0.5]]), prefix([[1, 2, 3], [1, 2, 3, 4]])
    groups = group_numbers(torch.tensor([[False, True, False, True], [True, False, False, False]]))

    def found(credit: Any) -> list[list[float]]:
        rows: list[list[float]] = group_non_score_reward(d, d * 0, mask, groups, 0.1, credit).tolist()
        return rows

    third = -0.1 * 0.3 / 3
    shared = [pytest.approx([-0.03, -0.03, -0.02, 0.0]), pytest.approx([-0.05, third, third, third])]
    assert found("shared") == shared
    assert found("last") == [pytest.approx([0, -0.06, -0.02, 0]), pytest.approx([-0.05, 0, 0, -0.03])]


def test_groups_of_one_token_are_tokens_and_a_whole_response_on_its_last_is_a_penalty_in_the_score() -> None:
    x, mask, scores = drawn(3, 5, seed=3), prefix([[1, 2, 3, 4, 5], [1], [1, 2]]), drawn(3, seed=4)
    alone = group_numbers(torch.ones_like(mask))
    plain = non_score_reward(x, x * 0, mask, 0.05)
    for credit in ("shared", "last"):
        found = group_non_score_reward(x, x * 0, mask, alone, 0.05, credit)  # type: ignore[arg-type]
        assert torch.equal(found, plain)
    whole = group_non_score_reward(x, x * 0, mask, torch.zeros(3, 5, dtype=torch.long), 0.3, "last")
    in_score = token_rewards(scores - 0.3 * torch.where(mask, x, 0.0).sum(1), torch.zeros_like(x), mask)
    torch.testing.assert_close(token_rewards(scores, whole, mask), in_score, rtol=1e-12, atol=1e-12)


def test_groups_by_hand() -> None:
    """The second row is cut within its last group; no token behind it counts."""
    closes = torch.tensor([[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 1, 1]]).bool()
    mask, x = prefix([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]), grid([[1.0, 2, 4, 8, 16, 32], [1, 2, 4, 8]])
    groups = group_numbers(closes)
    assert groups.tolist() == [[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1, 2]]
    assert group_sums(x, groups, mask).tolist() == [[3, 3, 28, 28, 28, 32], [7, 7, 7, 8, 0, 0]]
    assert group_ends(groups, mask).int().tolist() == [[0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]]
    whole = torch.tensor([[6.0, 6, 9, 9, 9, 7], [6, 6, 6, 8, NAN, NAN]])
    assert credited(whole, groups, mask, "shared").tolist() == [[3, 3, 3, 3, 3, 7], [2, 2, 2, 8, 0, 0]]
    assert credited(whole, groups, mask, "last").tolist() == [[0, 6, 0, 0, 9, 7], [0, 0, 6, 8, 0, 0]]
