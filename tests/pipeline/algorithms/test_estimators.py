from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn, f64, prefix
from torch import Tensor

from pipeline.algorithms.base import Estimate, Judged, Replayed, estimator_of, surrogate_of
from pipeline.algorithms.baselines import EPSILON
from pipeline.algorithms.gae import held, segment_gae, starts, targets
from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.algorithms.mathematics.advantages import gae, to_go
from pipeline.algorithms.mathematics.groups import centred, leave_one_out, normalised, v_star
from pipeline.algorithms.mathematics.losses import value_loss
from pipeline.algorithms.mathematics.preference import DPO, IPO, PairLoss, dpo_loss, ipo_loss, prefers
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.training.surrogate import response_weights

MASK = prefix([[1, 2], [3], [4, 5, 6], [7]])
LENGTHS = [2, 1, 3, 1]
SCORES = [1.0, 3.0, 2.0, 4.0]
V_STAR = f64(0.5, 0.5, -1.0, 1.0)


def judged(scores: list[float], penalty: float = 0.0) -> Judged:
    """`penalty` on every token; the greedy responses are worth 1 and 2."""
    non_score, greedy = torch.where(MASK, penalty, 0.0).double(), f64(1.0, 1.0, 2.0, 2.0)
    groups = torch.tensor([0, 0, 1, 1])
    return Judged(torch.tensor(scores).double(), non_score, None, MASK, groups, greedy, V_STAR)


def by(name: str, one: Judged, **knobs: Any) -> Estimate:
    cfg = trial_config(**knobs).algorithm
    return estimator_of(cfg.model_copy(update={"advantage": name}))(one, cfg)


def estimated(name: str, scores: list[float], penalty: float = 0.0, **knobs: Any) -> Tensor:
    advantages, returns = by(name, judged(scores, penalty), **knobs)
    assert returns is None
    assert not advantages[~MASK].any()
    return advantages


@pytest.mark.parametrize(
    ("name", "worth"),
    [
        ("reinforce", [-1.5, 0.5, -0.5, 1.5]),
        ("rloo", [-2.0, 2.0, -2.0, 2.0]),
        ("group_mean", [-1.0, 1.0, -1.0, 1.0]),
        ("group_norm", [sign / (math.sqrt(2) + EPSILON) for sign in (-1, 1, -1, 1)]),
        ("group_mean_batch_std", [sign / (math.sqrt(5 / 3) + EPSILON) for sign in (-1, 1, -1, 1)]),
        ("reinforce_pp", SCORES),
        ("remax", [0.0, 2.0, 0.0, 2.0]),
        ("v_star", [0.5, 2.5, 3.0, 3.0]),
        ("preference", [-1.0, 1.0, -1.0, 1.0]),
    ],
)
def test_a_response_has_one_advantage_on_all_its_tokens(name: str, worth: list[float]) -> None:
    """Mean 2.5; groups 1 and 3, 2 and 4, with sd sqrt 2; of all scores the variance is 5/3. A penalty of 0.5 a token is
    added after the comparison: of three tokens the first has -1.5 before it, the last -0.5."""
    found = estimated(name, SCORES)
    for row, length, wanted in zip(found, LENGTHS, worth, strict=True):
        assert row[:length].tolist() == pytest.approx([wanted] * length)
    apart = estimated(name, SCORES, -0.5) - found
    torch.testing.assert_close(apart[2], f64(-1.5, -1.0, -0.5))
    torch.testing.assert_close(apart[0], f64(-1.0, -0.5, 0.0))


def test_rewards_to_the_end_by_hand_with_a_discount() -> None:
    """Score 2 on the last of three tokens, -0.5 on each, gamma 0.5: 1.5, then -0.5 + 0.75, then -0.5 + 0.125."""
    found = estimated("reinforce_pp", [0.0, 0.0, 2.0, 0.0], -0.5, algorithm__gamma=0.5)
    assert found[2].tolist() == pytest.approx([-0.375, 0.25, 1.5])


@pytest.mark.parametrize(
    ("name", "missing"), [("gae", "values"), ("remax", "greedy"), ("v_star", "v_star"), ("replay", "replayed")]
)
def test_an_estimator_without_what_it_needs_is_refused(name: str, missing: str) -> None:
    with pytest.raises(ValueError, match="needs"):
        by(name, replace(judged(SCORES), **{missing: None}))  # type: ignore[arg-type]


def test_a_critics_returns_have_a_lambda_of_their_own() -> None:
    """1 makes them Monte Carlo, whatever the advantages have."""
    one = replace(judged(SCORES), non_score=0.1 * drawn(4, 3, seed=2) * MASK, values=drawn(4, 3, seed=3))
    (advantages, common), (same, apart) = (
        by("gae", one, algorithm__gae_lambda=0.6, algorithm__value_lambda=own) for own in (None, 1.0)
    )
    rewards = token_rewards(one.scores, one.non_score, MASK)
    assert torch.equal(advantages, same)
    assert one.values is not None
    torch.testing.assert_close(advantages, gae(rewards, one.values, MASK, 1.0, 0.6)[0])
    torch.testing.assert_close(apart, to_go(rewards, MASK, 1.0))
    torch.testing.assert_close(common, gae(rewards, one.values, MASK, 1.0, 0.6)[1])


def test_states_are_replayed_from_the_prompt_on_and_none_behind_the_end() -> None:
    found = starts(torch.tensor([5, 1, 3, 4]), 5, 2)
    assert found.int().tolist() == [[1, 0, 1, 0, 1], [1, 0, 0, 0, 0], [1, 0, 1, 0, 0], [1, 0, 1, 0, 0]]


def test_advantages_between_states_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    values, known = torch.tensor([[10.0, 99.0, 20.0, 99.0, 40.0]]), torch.tensor([[True, False, True, False, True]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert held(values, known).tolist() == [[10.0, 10.0, 20.0, 20.0, 40.0]]
    # The rewards up to the next known state, and its value; less the value of the newest one.
    one_segment = [[1 + 2 + 20 - 10, 2 + 20 - 10, 3 + 4 + 40 - 20, 4 + 40 - 20, 5 - 40]]
    assert segment_gae(rewards, values, known, mask, 0.0).tolist() == one_segment
    assert segment_gae(rewards, values, known, mask, 1.0).tolist() == [[15 - 10, 14 - 10, 12 - 20, 9 - 20, 5 - 40]]
    half = [[13 + 0.5 * (27 + 0.5 * -35), 12 + 0.5 * (27 + 0.5 * -35), 27 + 0.5 * -35, 24 + 0.5 * -35, -35]]
    assert segment_gae(rewards, values, known, mask, 0.5).tolist() == half


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_with_every_state_known_it_is_gae_and_with_the_prompt_alone_a_constant_baseline(lam: float) -> None:
    rewards, values = drawn(*MASK.shape, seed=1), drawn(*MASK.shape, seed=2)
    torch.testing.assert_close(segment_gae(rewards, values, MASK, MASK, lam), gae(rewards, values, MASK, 1.0, lam)[0])
    known = starts(MASK.sum(1), MASK.shape[1], MASK.shape[1])
    constant = torch.where(MASK, to_go(rewards, MASK, 1.0) - values[:, :1], 0.0)
    torch.testing.assert_close(segment_gae(rewards, values, known, MASK, lam), constant)


def test_a_critic_is_fitted_to_replayed_values_where_there_are_some() -> None:
    grid, values = drawn(*MASK.shape, seed=1), drawn(*MASK.shape, seed=2)
    known = starts(MASK.sum(1), MASK.shape[1], 2) & torch.tensor([[True], [False], [True], [False]])
    found = targets(replace(judged(SCORES), replayed=Replayed(values, known, values)), grid)
    assert torch.equal(found[known], values[known])
    assert torch.equal(found[~known], grid[~known])
    assert targets(judged(SCORES), grid) is grid


ALL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "leave one out": leave_one_out,
    "centred": centred,
    "normalised": lambda scores, groups: normalised(scores, groups, 1e-4),
}


def test_three_responses_by_hand() -> None:
    """1, 2 and 6: mean 3, distances -2, -1 and 3, whose squares add up to 14; the sd is sqrt 7."""
    one = torch.zeros(3).long()
    assert leave_one_out(f64(1, 2, 6), one).tolist() == [-3.0, -1.5, 4.5]
    assert centred(f64(1, 2, 6), one).tolist() == [-2.0, -1.0, 3.0]
    wanted = [distance / (math.sqrt(7) + 0.5) for distance in (-2, -1, 3)]
    assert normalised(f64(1, 2, 6), one, 0.5).tolist() == pytest.approx(wanted)
    assert normalised(f64(2, 2, 2, 2), torch.tensor([0, 0, 1, 1]), 1e-4).tolist() == [0.0] * 4


@pytest.mark.parametrize("name", ALL)
def test_groups_mean_zero_whatever_their_order_and_a_group_of_one_is_refused(name: str) -> None:
    compare, scores, groups = ALL[name], drawn(12, seed=1), torch.tensor([0, 1, 2] * 4)
    found = compare(scores, groups)
    torch.testing.assert_close(found.view(4, 3).sum(0), torch.zeros(3).double(), rtol=0, atol=1e-9)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compare(scores[order], groups[order] * 7 - 3), found[order])
    with pytest.raises(ValueError, match="at least two responses to"):
        compare(f64(1, 2, 3), torch.tensor([0, 0, 1]))


def test_losses_of_pairs_by_hand() -> None:
    """-log sigmoid(0.5 x 2) = log(1 + 1/e); (margin - 1 / (2 beta))^2 is 0 at margin 5 for beta 0.1."""
    expected = [math.log(1 + math.exp(-1)), math.log(2), math.log(1 + math.exp(1))]
    assert dpo_loss(f64(2.0, 0.0, -2.0), 0.5).tolist() == pytest.approx(expected)
    assert ipo_loss(f64(5.0, 0.0, 6.0), 0.1).tolist() == pytest.approx([0.0, 25.0, 1.0])


@pytest.mark.parametrize(("loss", "slope"), [(DPO, -0.5), (IPO, -1.0)])
@pytest.mark.parametrize("beta", [0.01, 0.05, 1.0])
def test_the_slope_at_the_reference_does_not_depend_on_beta(loss: PairLoss, slope: float, beta: float) -> None:
    margin = torch.zeros(1).double().requires_grad_()
    loss.of(margin, beta).backward()  # type: ignore[no-untyped-call]
    assert float(margin.grad) * loss.evened(beta) == pytest.approx(slope)


def test_the_better_one_of_two_is_preferred_and_equal_ones_are_not_tossed() -> None:
    scores, groups = torch.tensor([1.0, 0.5, 3.0, 2.0, 0.5, 3.5]), torch.tensor([7, 2, 4, 7, 2, 4])
    assert prefers(scores, groups).tolist() == [-1.0, 0.0, -1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("groups", [[0, 0, 0, 0], [0, 0, 1], [0, 1, 1, 2], [0, 0, 0, 1]])
def test_groups_that_are_no_pairs_are_refused(groups: list[int]) -> None:
    with pytest.raises(ValueError, match="exactly two responses to every prompt"):
        prefers(torch.zeros(len(groups)), torch.tensor(groups))


def test_v_star_of_two_samples_by_hand() -> None:
    """beta 1: log((1 + 3) / 2) = log 2 of scores 0 and log 3; beta 2 of twice these scores gives twice that."""
    scores = torch.tensor([[0.0, math.log(3)], [5.0, 5.0]], dtype=torch.float64)
    assert v_star(scores, 1.0).tolist() == pytest.approx([math.log(2), 5.0])
    assert v_star(2 * scores, 2.0).tolist() == pytest.approx([2 * math.log(2), 10.0])
    assert v_star(scores.float(), 1.0).dtype == torch.float64
    with pytest.raises(ValueError, match="no scored sample"):
        v_star(scores[:, :0], 1.0)


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
