"""The mathematics by hand, by identities, and against naive loops in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.config import PpoConfig, load_config
from pipeline.models.policy import response_mask
from pipeline.ppo.advantages import explained_variance, gae
from pipeline.ppo.controllers import KlController, LrGuard, adapted, hinge, lr_schedule, out_of_reach
from pipeline.ppo.kl import entropy, exact_kl, k1, k2, k3
from pipeline.ppo.losses import policy_loss, value_loss
from pipeline.ppo.masking import masked_mean, masked_var, masked_whiten
from pipeline.ppo.shaping import handle_missing_eos, non_score_reward, token_rewards

NAN = float("nan")


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- masks -------------------------------------------------------------------------------------------------


def test_response_mask_comes_from_lengths() -> None:
    assert response_mask(torch.tensor([1, 3, 0]), 3).tolist() == [[True, False, False], [True, True, True], [False, False, False]]


def test_masked_mean_and_variance_by_hand_and_blind_to_padding() -> None:
    x, mask = tensor([1.0, 2.0, NAN], [6.0, NAN, NAN]), torch.tensor([[True, True, False], [True, False, False]])
    assert masked_mean(x, mask).item() == pytest.approx(3.0)
    assert masked_var(x, mask).item() == pytest.approx((4 + 1 + 9) / 3)
    with pytest.raises(ValueError, match="no valid token"):
        masked_mean(x, torch.zeros_like(mask))


def test_whitening_by_hand() -> None:
    x, mask = tensor([1.0, 3.0, 99.0]), torch.tensor([[True, True, False]])
    assert masked_whiten(x, mask)[0].tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-6)
    assert masked_whiten(x, mask, shift_mean=False)[0].tolist() == pytest.approx([1.0, 3.0, 0.0], abs=1e-6)
    # A constant row has no variance to divide by; it must stay finite.
    assert masked_whiten(tensor([2.0, 2.0]), torch.ones(1, 2, dtype=torch.bool)).abs().max().item() == 0


# --- Kullback-Leibler --------------------------------------------------------------------------------------


def test_estimators_by_hand() -> None:
    d = tensor(math.log(2.0), -math.log(2.0), 0.0)
    assert k1(d).tolist() == d.tolist()
    assert k2(d).tolist() == pytest.approx([math.log(2) ** 2 / 2] * 2 + [0.0])
    assert k3(d).tolist() == pytest.approx([0.5 - 1 + math.log(2), 2 - 1 - math.log(2), 0.0])


def test_k3_keeps_its_digits_for_small_log_ratios() -> None:
    d = torch.tensor([1e-4], dtype=torch.float32)
    assert k3(d).item() == pytest.approx(0.5e-8, rel=0.1)


def test_estimators_agree_with_the_exact_divergence_on_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    log_pi = torch.log_softmax(torch.randn(7, generator=generator, dtype=torch.float64), -1)
    log_ref = torch.log_softmax(torch.randn(7, generator=generator, dtype=torch.float64), -1)
    tokens = torch.multinomial(log_pi.exp(), 400_000, replacement=True, generator=generator)
    d = (log_pi - log_ref)[tokens]
    truth = exact_kl(log_pi, log_ref).item()
    assert truth == pytest.approx(sum(math.exp(p) * (p - q) for p, q in zip(log_pi.tolist(), log_ref.tolist(), strict=True)))
    for estimator in (k1, k3):
        noise = estimator(d).std().item() / math.sqrt(len(d))
        assert abs(estimator(d).mean().item() - truth) < 4 * noise
    assert k2(d).mean().item() != pytest.approx(truth, rel=0.02)  # biased, and visibly so when the two are far apart
    assert exact_kl(log_pi, log_pi).item() == 0


def test_entropy_by_hand() -> None:
    assert entropy(tensor(0.5, 0.25, 0.25).log()).item() == pytest.approx(1.5 * math.log(2))
    assert entropy(torch.full((4,), 0.25).log()).item() == pytest.approx(math.log(4))


# --- rewards -----------------------------------------------------------------------------------------------


def test_missing_eos() -> None:
    scores, ended = tensor(2.0, 3.0), torch.tensor([True, False])
    assert handle_missing_eos(scores, ended, "replace", 1.0).tolist() == [2.0, -1.0]
    assert handle_missing_eos(scores, ended, "subtract", 1.0).tolist() == [2.0, 2.0]
    assert handle_missing_eos(scores, ended, "none", 1.0).tolist() == [2.0, 3.0]


def test_rewards_by_hand_with_the_score_on_the_last_valid_token() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    logprobs, ref = tensor([-1.0, -2.0, NAN], [-1.0, -1.0, -1.0]), tensor([-2.0, -1.5, NAN], [-1.0, -2.0, -1.0])
    kl_part = non_score_reward(logprobs, ref, mask, 0.1)
    assert kl_part.tolist() == [pytest.approx([-0.1, 0.05, 0.0]), pytest.approx([0.0, -0.1, 0.0])]
    rewards = token_rewards(tensor(5.0, 7.0), kl_part, mask)
    assert rewards.tolist() == [pytest.approx([-0.1, 5.05, 0.0]), pytest.approx([0.0, -0.1, 7.0])]
    with pytest.raises(ValueError, match="no valid token"):
        token_rewards(tensor(1.0), torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool))


# --- advantages --------------------------------------------------------------------------------------------

REWARDS, VALUES = [1.0, 0.0, 2.0], [0.5, 1.0, -1.0]
GOLDEN = {
    # lambda: advantages for gamma 0.9; delta = (1 + 0.9 - 0.5, 0 - 0.9 - 1, 2 + 1) = (1.4, -1.9, 3)
    0.0: [1.4, -1.9, 3.0],
    0.5: [1.4 + 0.45 * (-1.9 + 0.45 * 3), -1.9 + 0.45 * 3, 3.0],
    0.95: [1.4 + 0.855 * (-1.9 + 0.855 * 3), -1.9 + 0.855 * 3, 3.0],
    1.0: [1.4 + 0.9 * (-1.9 + 0.9 * 3), -1.9 + 0.9 * 3, 3.0],
}


@pytest.mark.parametrize("lam", GOLDEN)
def test_gae_golden_table(lam: float) -> None:
    rewards, values = tensor([*REWARDS, NAN]), tensor([*VALUES, 55.0])
    mask = torch.tensor([[True, True, True, False]])
    advantages, returns = gae(rewards, values, mask, 0.9, lam)
    assert advantages[0].tolist() == pytest.approx([*GOLDEN[lam], 0.0])
    assert returns[0].tolist() == pytest.approx([a + v for a, v in zip(GOLDEN[lam], VALUES, strict=True)] + [0.0])


def test_the_score_on_the_last_token_and_not_behind_it() -> None:
    # Score 2, values .3 .5 .6 and .9 after EOS: the advantage of EOS at lambda 0 is 2 - 0.6, whatever the critic says after it.
    rewards, values = tensor([0.0, 0.0, 2.0, 0.0]), tensor([0.3, 0.5, 0.6, 0.9])
    advantages, _ = gae(rewards, values, torch.tensor([[True, True, True, False]]), 1.0, 0.0)
    assert advantages[0].tolist() == pytest.approx([0.2, 0.1, 1.4, 0.0])


def naive_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Schulman 2016, eq. 16, as written: a sum over delta with weights (gamma lambda)^l."""
    after = [*values[1:], 0.0]
    delta = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** (j - t) * delta[j] for j in range(t, len(delta))) for t in range(len(delta))]


rows = st.lists(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(batch=rows, gamma=st.floats(0, 1), lam=st.floats(0, 1), pad=st.integers(0, 3), junk=st.floats(-1e6, 1e6))
def test_gae_equals_the_sum_it_stands_for_whatever_the_padding(
    batch: list[list[tuple[float, float]]], gamma: float, lam: float, pad: int, junk: float
) -> None:
    lengths = [len(row) for row in batch]
    width = max(lengths) + pad
    rewards, values = torch.full((len(batch), width), junk, dtype=torch.float64), torch.full((len(batch), width), junk, dtype=torch.float64)
    for index, row in enumerate(batch):
        rewards[index, : len(row)], values[index, : len(row)] = torch.tensor(row, dtype=torch.float64).T
    mask = response_mask(torch.tensor(lengths), width)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for index, row in enumerate(batch):
        expected = naive_gae([r for r, _ in row], [v for _, v in row], gamma, lam)
        assert advantages[index, : len(row)].tolist() == pytest.approx(expected, abs=1e-9)
    assert bool((advantages[~mask] == 0).all())
    assert bool((returns[~mask] == 0).all())


def test_lambda_one_is_monte_carlo_and_lambda_zero_the_td_error() -> None:
    generator = torch.Generator().manual_seed(1)
    rewards, values = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(3, 5, dtype=torch.bool)
    _, returns = gae(rewards, values, mask, 1.0, 1.0)
    assert torch.allclose(returns, rewards.flip(1).cumsum(1).flip(1))
    advantages, _ = gae(rewards, values, mask, 0.9, 0.0)
    after = torch.cat([values[:, 1:], torch.zeros(3, 1, dtype=torch.float64)], 1)
    assert torch.allclose(advantages, rewards + 0.9 * after - values)


def test_explained_variance() -> None:
    mask = torch.tensor([[True, True, False]])
    assert explained_variance(tensor([1.0, 2.0, 9.0]), tensor([1.0, 2.0, -9.0]), mask) == pytest.approx(1.0)
    assert explained_variance(tensor([1.5, 1.5, 9.0]), tensor([1.0, 2.0, -9.0]), mask) == pytest.approx(0.0)
    assert explained_variance(tensor([2.0, 1.0, 9.0]), tensor([1.0, 2.0, -9.0]), mask) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(tensor([0.0, 1.0, 0.0]), tensor([1.0, 1.0, 1.0]), mask))


# --- losses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.4, True),  # gain is capped above
        (0.5, 2.0, -1.0, False),  # but not the way back
        (1.5, -2.0, 3.0, False),
        (0.5, -2.0, 1.6, True),
        (1.1, 2.0, -2.2, False),
    ],
)
def test_policy_loss_by_hand(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    losses, active = policy_loss(tensor(math.log(ratio)), tensor(0.0), tensor(advantage), 0.2)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is clipped


@pytest.mark.parametrize(
    ("vpred", "value", "target", "loss", "clipped"),
    [
        (1.0, 1.0, 3.0, 2.0, False),
        (2.0, 1.0, 3.0, 0.5 * 1.8**2, True),  # may only move by 0.2: 1.2 counts
        (0.0, 1.0, 3.0, 4.5, False),  # moving away is not forgiven
        (1.1, 1.0, 3.0, 0.5 * 1.9**2, False),
    ],
)
def test_value_loss_by_hand(vpred: float, value: float, target: float, loss: float, clipped: bool) -> None:
    losses, active = value_loss(tensor(vpred), tensor(value), tensor(target), 0.2)
    assert losses.item() == pytest.approx(loss)
    assert active.item() is clipped


def test_no_gradient_flows_through_a_clipped_ratio() -> None:
    for advantage, ratio, moves in ((1.0, 1.5, False), (1.0, 0.5, True), (-1.0, 0.5, False), (-1.0, 1.5, True)):
        new = tensor(math.log(ratio)).requires_grad_()
        policy_loss(new, tensor(0.0), tensor(advantage), 0.2)[0].sum().backward()
        assert new.grad is not None
        assert bool(new.grad.abs().item() > 0) is moves


# --- controllers -------------------------------------------------------------------------------------------


def controlled(**knobs: Any) -> PpoConfig:
    return PpoConfig(**{"kl_coef": 0.1, "batch_size": 512, "steps": 1_600, **knobs})


def test_adaptive_beta_by_hand() -> None:
    controller = KlController.of(controlled(kl_control="adaptive", kl_target=6.0, kl_horizon=10_000))
    controller.observe(6.6)
    assert controller.kl_coef == pytest.approx(0.1 * (1 + 0.1 * 512 / 10_000))
    controller.observe(600.0)  # the error is clipped at 0.2
    assert controller.kl_coef == pytest.approx(0.1 * (1 + 0.1 * 512 / 10_000) * (1 + 0.2 * 512 / 10_000))
    assert adapted(0.1, 0.0, 6.0, 1_000, 10_000) == pytest.approx(0.1 * 0.98)


def test_fixed_beta_stays() -> None:
    controller = KlController.of(controlled())
    controller.observe(1e9)
    controller.start(37)
    assert controller.kl_coef == 0.1


@pytest.mark.parametrize(
    ("control", "betas"),
    [
        ({"kl_control": "linear", "kl_coef_end": 0.02}, [0.1, 0.08, 0.06, 0.04, 0.02]),
        ({"kl_control": "cosine", "kl_coef_end": 0.02}, [0.1, 0.0882842712, 0.06, 0.0317157288, 0.02]),
        ({"kl_control": "piecewise", "kl_coef_stages": ((0.25, 0.05), (0.75, 0.0))}, [0.1, 0.05, 0.05, 0.0, 0.0]),
    ],
)
def test_curricula_of_beta_by_hand(control: dict[str, Any], betas: list[float]) -> None:
    """At a quarter, half and three quarters of the way: cos π/4 = 0.7071."""
    controller = KlController.of(controlled(**control, steps=16 * 101))
    reached = []
    for update in (0, 25, 50, 75, 100):
        controller.start(update)
        reached.append(controller.kl_coef)
    assert reached == pytest.approx(betas)


def test_the_hinge_shrinks_a_step_beyond_its_threshold() -> None:
    assert [hinge(kl, 0.02) for kl in (-0.1, 0.0, 0.02, 0.04, 0.2)] == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])
    assert hinge(100.0, None) == 1.0


def test_the_target_kl_stop_leaves_half_as_much_again() -> None:
    assert [out_of_reach(kl, 0.02) for kl in (0.0, 0.03, 0.0301)] == [False, False, True]
    assert not out_of_reach(1e9, None)


def test_the_lr_guard_cuts_for_its_time_and_no_deeper() -> None:
    guard = LrGuard(enabled=True, threshold=0.015, cut=0.5, hold=3)
    guard.observe(0.015)
    assert guard.factor == 1.0  # not above
    guard.observe(0.016)
    factors = []
    for _ in range(2):
        factors.append(guard.factor)
        guard.step()
    guard.observe(0.5)  # again, while cut
    for _ in range(4):
        factors.append(guard.factor)
        guard.step()
    assert factors == [0.5, 0.5, 0.5, 0.5, 0.5, 1.0]
    off = LrGuard(enabled=False, threshold=0.015, cut=0.5, hold=3)
    off.observe(9.0)
    assert off.factor == 1.0


def test_controllers_survive_a_checkpoint() -> None:
    cfg = controlled(kl_control="adaptive")
    kl, guard = KlController(cfg, 0.3), LrGuard(True, 0.1, 0.5, 9, remaining=4)
    kl2, guard2 = KlController(cfg, 0.1), LrGuard(True, 0.1, 0.5, 9)
    kl2.load(kl.state())
    guard2.load(guard.state())
    assert (kl2, guard2) == (kl, guard)


def test_learning_rate_falls_to_zero_at_the_last_step() -> None:
    cfg = load_config("tiny", {"ppo.steps": 64}).ppo
    assert [lr_schedule(cfg, step) for step in (0, 32, 64)] == [1.0, 0.5, 0.0]
    constant = load_config("tiny", {"ppo.lr_schedule": "constant"}).ppo
    assert lr_schedule(constant, 2_000) == 1.0
