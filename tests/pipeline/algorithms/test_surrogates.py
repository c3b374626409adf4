"""Losses by trust region: the identities of their gradients at ratio 1, two passes against one, and numbers that stay
finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn, prefix
from tinytrial import preset, rows_of
from torch import Tensor

from pipeline.algorithms.aggregation import response_weights
from pipeline.algorithms.base import Behaviour
from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.algorithms.mathematics.losses import group_kl_loss, kl_loss
from pipeline.algorithms.registry import surrogate_of
from pipeline.models.policy import to_grid
from pipeline.training.experience import LossTerm
from pipeline.training.part import parts_of
from pipeline.training.surrogate import surrogate_term
from pipeline.training.update import step_metrics

NO_RATIO = {"algorithm__ratio": "none", "algorithm__trust_region": "none", "train__num_epochs": 1}
CISPO, NONE = {"algorithm__trust_region": "cispo"}, {"algorithm__trust_region": "none"}
LOG2 = math.log(2)
MASK = prefix([[1, 2], [3], [4, 5, 6], [7]])


def losses(new: Tensor, old: Tensor, advantages: Tensor, knobs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    return surrogate_of(trial_config(**knobs).algorithm)(Behaviour(old, advantages), new)


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


@pytest.mark.parametrize("name", [name for name, region in TRUST_REGIONS.items() if not region.pairwise])
def test_at_ratio_one_all_are_the_policy_gradient(name: str) -> None:
    old, advantages = -drawn(9, seed=1).abs(), drawn(9, seed=2)
    found = gradient(old, old, advantages, {"algorithm__trust_region": name, "critic__kind": "separate"})
    torch.testing.assert_close(found, -advantages, rtol=1e-12, atol=1e-12)


# --- of whole responses ------------------------------------------------------------------------------------


def in_two_parts(term: LossTerm, new: Tensor) -> Tensor:
    """The gradient of a term by all log-probs (7,), cut within a response."""
    leaf = new.clone().requires_grad_()
    parts = (term.loss(part, leaf[part], lambda: leaf).sum() for part in (slice(0, 4), slice(4, 7)))
    (found,) = torch.autograd.grad(torch.stack(list(parts)).sum(), leaf)
    return found


def surrogate_gradient(knobs: dict[str, Any], spread: float) -> Tensor:
    """Of the mean loss over four responses of which the longest could have 5 tokens."""
    old, advantages = -drawn(7, seed=2).abs(), torch.where(MASK, drawn(4, 1, seed=4), 0.0)[MASK]
    new, rows = old + spread * drawn(7, seed=3), rows_of(old, MASK, advantages=advantages)
    rows.now = lambda: new
    cfg = trial_config(**{**knobs, "train__response_length": 5})
    return in_two_parts(surrogate_term(rows, MASK.sum().double(), 4, cfg), new) / 7


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("level", ["sequence_sum", "sequence_mean"])
@pytest.mark.parametrize("knobs", [{}, {"algorithm__clip__dual": 1.5}])
def test_two_passes_have_the_gradient_of_the_plain_loss(spread: float, level: str, knobs: dict[str, Any]) -> None:
    """max(-A r, -A clip(r)) with r = exp(sum or mean of new - old), mean over responses, by autograd in float64."""
    width = {"algorithm__clip__epsilon": 0.01} if level == "sequence_mean" else {}
    knobs = {**preset("rloo"), **knobs, **width, "algorithm__ratio": level}
    cfg, old, advantages = trial_config(**knobs).algorithm, -drawn(7, seed=2).abs(), drawn(4, seed=4)
    new = (old + spread * drawn(7, seed=3)).requires_grad_()
    apart = to_grid(new - old, MASK).sum(1)
    ratio = (apart / MASK.sum(1) if level == "sequence_mean" else apart).exp()
    plain = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - cfg.clip.epsilon, 1 + cfg.clip.epsilon))
    if cfg.clip.dual is not None:
        plain = torch.where(advantages < 0, torch.minimum(plain, -cfg.clip.dual * advantages), plain)
    (wanted,) = torch.autograd.grad(plain.mean(), new)
    torch.testing.assert_close(surrogate_gradient(knobs, spread), wanted, rtol=1e-12, atol=1e-12)


def test_at_ratio_one_gspo_is_grpo_and_sums_of_tokens_and_a_constant_differ_by_a_factor() -> None:
    gspo, grpo, constant = (surrogate_gradient(preset(name), 0.0) for name in ("gspo", "grpo", "dr_grpo"))
    torch.testing.assert_close(gspo, grpo, rtol=1e-6, atol=1e-8)
    sums = surrogate_gradient({**preset("grpo"), "algorithm__aggregation": "seq_mean_token_sum"}, 0.0)
    torch.testing.assert_close(sums, 5 * constant, rtol=1e-6, atol=1e-8)


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


# --- far away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "advantage", "loss", "slope"),
    [
        ({}, 2.0, -2.4, 0.0),
        ({}, 0.0, 0.0, 0.0),
        ({"algorithm__clip__dual": 3.0}, -2.0, 6.0, 0.0),
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


@pytest.mark.parametrize(("knobs", "advantage"), [({}, -2.0), (NONE, -2.0), (NONE, 2.0)])
def test_unbounded_losses_stay_finite_and_push_the_right_way(knobs: dict[str, Any], advantage: float) -> None:
    new, old, advantages = (torch.tensor([x]) for x in (-1.0, -121.0, advantage))
    loss, slope = losses(new, old, advantages, knobs)[0].item(), gradient(new, old, advantages, knobs).item()
    assert math.isfinite(loss)
    assert loss == pytest.approx(slope)
    assert slope * advantage < -1e30


@pytest.mark.parametrize("moved", [-120.0, 120.0])
def test_penalties_and_metrics_far_from_the_rollout_are_finite(moved: float) -> None:
    old = torch.tensor([-121.0])
    rows, new = rows_of(old, torch.ones(1, 1, dtype=torch.bool)), (old + moved).requires_grad_()
    assert all(bool(torch.isfinite(column).all()) for column in step_metrics(rows, old + moved).values())
    term = parts_of(trial_config(algorithm__trust_region="kl_penalty"))["old_kl"].loss(rows)
    assert term is not None
    far = [kl_loss(new, old, old, kind) for kind in ("k3", "ratio_k3")]  # type: ignore[arg-type]
    for loss in (term.loss(slice(None), new, lambda: new), *far):
        assert torch.isfinite(loss).all()
        assert torch.isfinite(torch.autograd.grad(loss.sum(), new)[0]).all()
    assert torch.isfinite(torch.stack(group_kl_loss(torch.tensor([-120.0, 120.0]), "k3"))).all()
