"""Scores compared within their group, losses of pairs, and V*: by hand, and by identities."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from naive import drawn
from torch import Tensor

from pipeline.algorithms.mathematics.groups import centred, leave_one_out, normalised, v_star
from pipeline.algorithms.mathematics.preference import DPO, IPO, PairLoss, dpo_loss, ipo_loss, prefers

ALL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "leave one out": leave_one_out,
    "centred": centred,
    "normalised": lambda scores, groups: normalised(scores, groups, 1e-4),
}


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


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
