"""Losses of pairs by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.algorithms.mathematics.preference import LOSSES, dpo_loss, evened, ipo_loss, prefers


def test_dpo_by_hand() -> None:
    """-log sigmoid(0.5 x 2) = log(1 + 1/e); at margin 0 log 2, whatever beta is."""
    margins = torch.tensor([2.0, 0.0, -2.0]).double()
    expected = [math.log(1 + math.exp(-1)), math.log(2), math.log(1 + math.exp(1))]
    assert dpo_loss(margins, 0.5).tolist() == pytest.approx(expected)
    assert dpo_loss(margins[1:2], 7.0).item() == pytest.approx(math.log(2))


def test_ipo_by_hand() -> None:
    """(margin - 1 / (2 beta))^2: 0 at margin 5 for beta 0.1, and rising again beyond; DPO's never rises."""
    assert ipo_loss(torch.tensor([5.0, 0.0, 6.0]), 0.1).tolist() == pytest.approx([0.0, 25.0, 1.0])
    assert dpo_loss(torch.tensor(6.0), 0.1) < dpo_loss(torch.tensor(5.0), 0.1)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("beta", [0.01, 0.05, 1.0])
def test_the_slope_at_the_reference_does_not_depend_on_beta(kind: str, beta: float) -> None:
    margin = torch.zeros(1).double().requires_grad_()
    LOSSES[kind](margin, beta).backward()  # type: ignore[no-untyped-call]
    assert float(margin.grad) * evened(kind, beta) == pytest.approx({"dpo": -0.5, "ipo": -1.0}[kind])


def test_the_better_one_of_two_is_preferred_and_equal_ones_are_not_tossed() -> None:
    scores, groups = torch.tensor([1.0, 0.5, 3.0, 2.0, 0.5, 3.5]), torch.tensor([7, 2, 4, 7, 2, 4])
    assert prefers(scores, groups).tolist() == [-1.0, 0.0, -1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("groups", [[0, 0, 0, 0], [0, 0, 1], [0, 1, 1, 2], [0, 0, 0, 1]])
def test_groups_that_are_no_pairs_are_refused(groups: list[int]) -> None:
    with pytest.raises(ValueError, match="exactly two responses to every prompt"):
        prefers(torch.zeros(len(groups)), torch.tensor(groups))
