"""The general preference model: its mathematics, what it learns and Bradley-Terry cannot, and its way to the disk."""

from __future__ import annotations

import pytest
import torch

from pipeline.rewards.learned import RewardModel
from pipeline.rewards.pairwise import PairwiseModel


def test_the_logit_by_hand() -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0]), torch.tensor([0.5, 1.0, -1.0, 2.0, 4.0])
    # 1 - 0.5 + (2 * -1 - 3 * 1) + (5 * 4 - 7 * 2)
    assert PairwiseModel.margin(a, b).item() == pytest.approx(0.5 - 5 + 6)
    assert PairwiseModel.margin(b, a).item() == pytest.approx(-1.5), "both orders add up to a probability of 1"


def test_loss_and_gradient_by_hand() -> None:
    a = torch.tensor([[0.2, 1.0, 0.5]], requires_grad=True)
    b = torch.tensor([[0.1, -1.0, 2.0]], requires_grad=True)
    loss = PairwiseModel.loss(a, b)
    # logit = 0.1 + 1 * 2 - 0.5 * -1 = 2.6; loss = log(1 + exp(-2.6)); its slope -1 / (1 + exp(2.6))
    assert loss.item() == pytest.approx(0.0716442, abs=1e-6)
    loss.backward()
    slope = -0.0691384
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad[0].tolist() == pytest.approx([slope, slope * 2.0, slope * 1.0], abs=1e-6)
    assert b.grad[0].tolist() == pytest.approx([-slope, slope * -0.5, slope * 1.0], abs=1e-6)


def test_the_mean_probability_of_beating_k_opponents() -> None:
    mine = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    theirs = torch.tensor([[[0.0, 5.0, 5.0], [3.0, 1.0, 1.0]], [[0.0, 0.0, 2.0], [0.0, 0.0, -2.0]]])
    expected = [(0.7310586 + 0.1192029) / 2, 0.5]  # σ(1) and σ(-2); σ(2) and σ(-2)
    assert PairwiseModel.against(mine, theirs).tolist() == pytest.approx(expected, abs=1e-6)
    # Every row has opponents of its own.
    alone = [PairwiseModel.against(mine[row : row + 1], theirs[row : row + 1]).item() for row in range(2)]
    assert PairwiseModel.against(mine, theirs).tolist() == alone


def test_a_cycle_of_three_is_learned_exactly_where_bradley_terry_stays_at_chance() -> None:
    """Three answers, each of which beats the next."""
    better, worse = torch.eye(3), torch.eye(3)[[1, 2, 0]]
    torch.manual_seed(0)
    general, scalar = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    steps = torch.optim.Adam([*general.parameters(), *scalar.parameters()], lr=0.05)
    for _ in range(400):
        steps.zero_grad()
        losses = PairwiseModel.loss(general(better), general(worse)), RewardModel.loss(scalar(better), scalar(worse))
        sum(losses).backward()  # type: ignore[union-attr]
        steps.step()
    with torch.no_grad():
        assert (PairwiseModel.margin(general(better), general(worse)).sigmoid() > 0.99).all()
        assert (scalar(better) - scalar(worse)).abs().max() < 1e-3
        assert losses[1].item() == pytest.approx(0.6931472, abs=1e-5)
