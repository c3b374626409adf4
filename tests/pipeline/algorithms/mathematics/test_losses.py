"""The clipped losses and their gradients: by hand, against plain cases in each dtype, and their laws."""

from __future__ import annotations

import math
from typing import Literal

import naive
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from naive import DTYPES, close, drawn, eps, exact
from torch import Tensor

from pipeline.algorithms.mathematics.kl import exact_kl, k1
from pipeline.algorithms.mathematics.losses import dual_clip, group_kl_loss, kl_loss, policy_loss, value_loss

log_ratios, scores, clips = st.floats(-2, 2), st.floats(-5, 5), st.floats(0.01, 0.9)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def slope(loss: Tensor, at: Tensor) -> list[float]:
    """Derivative of each loss by its own entry of `at`."""
    (gradient,) = torch.autograd.grad(loss.sum(), at)
    return [float(value) for value in gradient]


# --- policy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.4, True),  # gain is capped above, at 1.2 x 2
        (0.5, 2.0, -1.0, False),  # but not the way back
        (1.5, -2.0, 3.0, False),
        (0.5, -2.0, 1.6, True),  # 0.8 x 2
        (1.1, 2.0, -2.2, False),
        (1.5, 0.0, 0.0, False),
        (0.5, 0.0, 0.0, False),
    ],
)
def test_policy_loss_by_hand(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    losses, active = policy_loss(f64(math.log(ratio)), f64(0.0), f64(advantage), 0.2)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is clipped


def test_the_ratio_is_of_new_over_behaviour() -> None:
    # The same change of 0.1 nats from another level, and the other way round.
    for new, old in ((-2.0, -2.1), (-0.1, -0.2)):
        assert policy_loss(f64(new), f64(old), f64(1.0), 0.5)[0].item() == pytest.approx(-math.exp(0.1))
        assert policy_loss(f64(old), f64(new), f64(1.0), 0.5)[0].item() == pytest.approx(-math.exp(-0.1))


@given(advantage=scores, logprob=st.floats(-20, 0), clip=clips)
def test_at_ratio_one_the_loss_is_minus_the_advantage_and_so_is_its_gradient(
    advantage: float, logprob: float, clip: float
) -> None:
    new = f64(logprob).requires_grad_()
    losses, active = policy_loss(new, f64(logprob), f64(advantage), clip)
    assert losses.item() == -advantage
    assert slope(losses, new) == [-advantage]
    assert not active.item()


@given(d=log_ratios, advantage=scores, clip=clips)
def test_policy_loss_against_plain_cases(d: float, advantage: float, clip: float) -> None:
    ratio = math.exp(d)
    assume(min(abs(ratio - 1 - clip), abs(ratio - 1 + clip)) > 1e-9)  # at the edge itself rounding decides
    new = f64(d).requires_grad_()
    losses, active = policy_loss(new, f64(0.0), f64(advantage), clip)
    expected, clipped = naive.surrogate(ratio, advantage, clip)
    assert losses.item() == pytest.approx(expected, rel=1e-12, abs=1e-300)
    if abs(advantage) > 1e-300:  # below, both terms round to the same
        assert active.item() is clipped
        # d/d new of exp(new - old) is the ratio; what is clipped is constant.
        assert slope(losses, new) == pytest.approx([0.0 if clipped else -advantage * ratio], rel=1e-12)


@given(d=log_ratios, advantage=scores, clip=clips, factor=st.floats(0, 10))
def test_policy_loss_is_pessimistic_and_scales_with_the_advantage(
    d: float, advantage: float, clip: float, factor: float
) -> None:
    loss = policy_loss(f64(d), f64(0.0), f64(advantage), clip)[0].item()
    assert loss >= -advantage * math.exp(d) - 1e-12
    assert loss >= -abs(advantage) * (1 + clip) - 1e-12  # no more than this can be gained from one rollout
    assert policy_loss(f64(d), f64(0.0), f64(factor * advantage), clip)[0].item() == pytest.approx(
        factor * loss, rel=1e-9, abs=1e-12
    )
    assert policy_loss(f64(d), f64(0.0), f64(advantage), 1e9)[0].item() == pytest.approx(
        -advantage * math.exp(d)
    )  # no clip at all


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_policy_loss_in_each_dtype(dtype: torch.dtype) -> None:
    new, old, advantages = (drawn(300, seed=seed, dtype=dtype, scale=0.5) for seed in range(3))
    losses, active = policy_loss(new, old, advantages, 0.2)
    assert (losses.dtype, active.dtype) == (dtype, torch.bool)
    compared = 0
    for ours, flag, n, o, a in zip(losses, active, exact(new), exact(old), exact(advantages), strict=True):
        d = float(n - o)
        expected, clipped = naive.surrogate(math.exp(d), float(a), 0.2)
        # The difference rounds by half an eps of itself, and so the ratio relatively; then the ratio (one unit), its
        # bound, the product.
        relative = eps(dtype) * (abs(d) / 2 + 2)
        close(ours, [expected], relative * abs(expected) + 1e-12 * eps(dtype))
        if min(abs(math.exp(d) - 1.2), abs(math.exp(d) - 0.8)) > 1.2 * relative and abs(float(a)) > eps(dtype):
            compared += 1
            assert flag.item() is clipped
    assert compared > 250


# --- dual clip ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "bound"),
    [
        (4.0, -2.0, 6.0, True),  # 4 x 2 = 8 ends at 3 x 2
        (2.5, -2.0, 5.0, False),  # within
        (0.5, -2.0, 1.6, False),  # the clip below is the usual one
        (4.0, 2.0, -2.4, False),  # good tokens have the usual clip
        (0.1, 2.0, -0.2, False),
        (4.0, 0.0, 0.0, False),
    ],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, loss: float, bound: bool) -> None:
    losses, active = dual_clip(policy_loss(f64(math.log(ratio)), f64(0.0), f64(advantage), 0.2)[0], f64(advantage), 3.0)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is bound


@given(d=st.floats(-3, 3), advantage=scores, bound=st.floats(1.3, 5))
def test_dual_clip_bounds_the_loss_and_touches_nothing_else(d: float, advantage: float, bound: float) -> None:
    new = f64(d).requires_grad_()
    plain, _ = policy_loss(new, f64(0.0), f64(advantage), 0.2)
    losses, active = dual_clip(plain, f64(advantage), bound)
    assert losses.item() <= bound * abs(advantage) + 1e-12
    assert active.item() is (plain.item() > bound * abs(advantage))
    if active.item():
        assert (advantage < 0, math.exp(d) > bound * (1 - 1e-9)) == (True, True)
        assert losses.item() == pytest.approx(-bound * advantage)
        assert slope(losses, new) == [0.0]  # a token so far away pulls no more
    else:
        assert losses.item() == plain.item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dual_clip_keeps_the_dtype(dtype: torch.dtype) -> None:
    losses, active = dual_clip(drawn(9, seed=0, dtype=dtype).abs(), -drawn(9, seed=1, dtype=dtype).abs(), 2.0)
    assert (losses.dtype, active.dtype) == (dtype, torch.bool)


# --- KL in the loss ----------------------------------------------------------------------------------------


def test_kl_in_the_loss_by_hand() -> None:
    # d = log 2 and -log 2: k2 is 0.2402 both times; k3 is 1/2 - 1 + log 2 = 0.1931, and 2 - 1 - log 2 = 0.3069.
    new, ref, log2 = f64(-1.0, -1.0), f64(-1 - math.log(2), -1 + math.log(2)), math.log(2)
    assert kl_loss(new, ref, new, "k2").tolist() == pytest.approx([log2**2 / 2] * 2)
    assert kl_loss(new, ref, new, "k3").tolist() == pytest.approx([log2 - 0.5, 1 - log2])


def test_the_penalty_of_a_group_by_hand_and_its_slope() -> None:
    log2 = math.log(2)
    estimates, slopes = group_kl_loss(f64(log2, -log2, 0.0), "k2")
    assert estimates.tolist() == pytest.approx([log2**2 / 2, log2**2 / 2, 0.0])
    assert slopes.tolist() == pytest.approx([log2, -log2, 0.0])
    estimates, slopes = group_kl_loss(f64(log2, -log2, 0.0), "k3")
    assert estimates.tolist() == pytest.approx([log2 - 0.5, 1 - log2, 0.0])
    assert slopes.tolist() == pytest.approx([0.5, -1.0, 0.0])  # 1 - 1/2 and 1 - 2


@given(d=st.lists(st.floats(-3, 3), min_size=1, max_size=5), name=st.sampled_from(["k2", "k3"]))
def test_the_slope_of_a_group_is_the_derivative(d: list[float], name: Literal["k2", "k3"]) -> None:
    at = f64(*d).requires_grad_()
    estimates, slopes = group_kl_loss(at, name)
    assert slope(estimates, at) == pytest.approx(slopes.tolist(), abs=1e-12)


distributions = st.integers(2, 5).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(-3, 3), min_size=size, max_size=size)] * 2)
)


@given(pair=distributions)
def test_gradients_of_the_estimators_in_expectation(pair: tuple[list[float], list[float]]) -> None:
    """Over tokens that the policy samples, by enumeration: k2 follows KL(pi || ref), k3 KL(ref || pi), and k1
    nothing."""
    z, ref = f64(*pair[0]).requires_grad_(), torch.log_softmax(f64(*pair[1]), -1)
    log_pi = torch.log_softmax(z, -1)
    drawn_from = log_pi.exp().detach()  # sampling does not differentiate
    means = {name: (drawn_from * kl_loss(log_pi, ref, log_pi, name)).sum() for name in ("k2", "k3")}  # type: ignore[arg-type]
    wanted = {"k2": exact_kl(log_pi, ref), "k3": exact_kl(ref, log_pi)}
    for name, mean in means.items():
        (ours,), (truth,) = (torch.autograd.grad(one, z, retain_graph=True) for one in (mean, wanted[name]))
        assert torch.allclose(ours, truth, atol=1e-12)
    (nothing,) = torch.autograd.grad((drawn_from * k1(log_pi - ref)).sum(), z)
    assert torch.allclose(nothing, torch.zeros_like(nothing), atol=1e-12)


# --- value -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vpred", "value", "target", "loss", "clipped"),
    [
        (1.0, 1.0, 3.0, 2.0, False),
        (2.0, 1.0, 3.0, 1.62, True),  # may only move by 0.2: (1.2 - 3)^2 / 2
        (0.0, 1.0, 3.0, 4.5, False),  # moving away is not forgiven
        (1.1, 1.0, 3.0, 1.805, False),  # within the clip: 1.9^2 / 2
        (1.5, 2.0, 0.0, 1.62, True),  # downwards: (1.8 - 0)^2 / 2
        (3.0, 1.0, 1.5, 1.125, False),  # overshot: 1.5^2 / 2 is worse than 0.3^2 / 2
    ],
)
def test_value_loss_by_hand(vpred: float, value: float, target: float, loss: float, clipped: bool) -> None:
    losses, active = value_loss(f64(vpred), f64(value), f64(target), 0.2)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is clipped


@given(vpred=scores, value=scores, target=scores, clip=clips)
def test_value_loss_against_plain_cases(vpred: float, value: float, target: float, clip: float) -> None:
    new = f64(vpred).requires_grad_()
    losses, active = value_loss(new, f64(value), f64(target), clip)
    expected, clipped = naive.value_loss(vpred, value, target, clip)
    assert losses.item() == pytest.approx(expected, rel=1e-9, abs=1e-15)
    plain, at_edge = 0.5 * (vpred - target) ** 2, abs(expected - 0.5 * (vpred - target) ** 2) < 1e-9
    assert losses.item() >= plain - 1e-15
    if not at_edge:
        assert active.item() is clipped
        assert slope(losses, new) == [0.0]  # beyond the clip there is nothing to gain
    elif abs(vpred - value) < clip - 1e-9:
        assert not active.item()
        assert slope(losses, new) == pytest.approx([vpred - target])


@given(vpred=scores, value=scores, target=scores, clip=clips, shift=scores)
def test_value_loss_knows_only_distances(vpred: float, value: float, target: float, clip: float, shift: float) -> None:
    loss = value_loss(f64(vpred), f64(value), f64(target), clip)[0].item()
    moved = value_loss(f64(vpred + shift), f64(value + shift), f64(target + shift), clip)[0].item()
    mirrored = value_loss(f64(-vpred), f64(-value), f64(-target), clip)[0].item()
    assert (moved, mirrored) == (pytest.approx(loss, abs=1e-11), pytest.approx(loss, abs=1e-11))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_loss_in_each_dtype(dtype: torch.dtype) -> None:
    vpred, values, returns = (drawn(300, seed=seed, dtype=dtype) for seed in range(3))
    losses, active = value_loss(vpred, values, returns, 0.2)
    assert (losses.dtype, active.dtype) == (dtype, torch.bool)
    for ours, v, o, r in zip(losses, exact(vpred), exact(values), exact(returns), strict=True):
        expected, _ = naive.value_loss(float(v), float(o), float(r), 0.2)
        # The bound of the clip and the distance from the target round by half an eps of what they are; the square
        # doubles that.
        off = eps(dtype) * (abs(float(o)) + 0.2 + abs(float(r)) + abs(float(v)))
        distance = math.sqrt(2 * expected)
        close(ours, [expected], distance * off + off**2 + eps(dtype) * expected)


# --- both --------------------------------------------------------------------------------------------------


@given(tokens=st.lists(st.tuples(log_ratios, scores), min_size=1, max_size=8), cut=st.integers(0, 8))
def test_tokens_do_not_see_each_other_so_micro_batches_add_up(tokens: list[tuple[float, float]], cut: int) -> None:
    x, y = (f64(*column) for column in zip(*tokens, strict=True))
    for function in (policy_loss, value_loss):
        whole, flags = function(x, 0.5 * y, y, 0.2)
        parts = [function(a, 0.5 * b, b, 0.2) for a, b in ((x[:cut], y[:cut]), (x[cut:], y[cut:]))]
        assert torch.equal(whole, torch.cat([loss for loss, _ in parts]))
        assert torch.equal(flags, torch.cat([flag for _, flag in parts]))
        back, _ = function(x.flip(0), 0.5 * y.flip(0), y.flip(0), 0.2)
        assert torch.equal(back.flip(0), whole)


def test_a_mean_of_micro_batch_means_would_be_another_loss() -> None:
    # Advantages 1, 1, 1 and 5 at ratio 1: the mean over tokens is -2; halves of three and one would give (-1 - 5) / 2 =
    # -3.
    zero, advantages = torch.zeros(4, dtype=torch.float64), f64(1.0, 1.0, 1.0, 5.0)
    losses, _ = policy_loss(zero, zero, advantages, 0.2)
    by_parts = sum(part.sum() for part in (losses[:3], losses[3:])) / len(losses)
    assert by_parts.item() == losses.mean().item() == -2.0
