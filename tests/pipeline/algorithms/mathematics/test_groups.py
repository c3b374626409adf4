"""Scores compared within their group: by hand, and by the identities that tie the comparisons together."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import drawn
from torch import Tensor

from pipeline.algorithms.mathematics.groups import centred, leave_one_out, normalised

SCORES = st.lists(st.floats(-5, 5), min_size=8, max_size=8)
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


@given(rewards=SCORES, size=st.sampled_from([2, 4, 8]))
def test_leave_one_out_is_the_distance_from_the_mean_stretched(rewards: list[float], size: int) -> None:
    scores, groups = f64(*rewards), torch.arange(8) // size
    stretched = centred(scores, groups) * size / (size - 1)
    torch.testing.assert_close(leave_one_out(scores, groups), stretched, rtol=1e-9, atol=1e-9)


@given(rewards=SCORES, size=st.sampled_from([2, 4, 8]))
@pytest.mark.parametrize("name", ALL)
def test_every_group_means_zero(name: str, rewards: list[float], size: int) -> None:
    means = ALL[name](f64(*rewards), torch.arange(8) // size).view(-1, size).sum(1)
    torch.testing.assert_close(means, torch.zeros_like(means), rtol=0, atol=1e-9)


@given(first=st.floats(-5, 5), gap=st.floats(0.01, 5))
def test_of_two_responses_only_the_sign_is_left(first: float, gap: float) -> None:
    found = normalised(f64(first, first + gap), torch.zeros(2).long(), 0.0)
    assert found.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-6)


def test_equal_scores_are_worth_nothing() -> None:
    assert normalised(f64(2, 2, 2, 2), torch.tensor([0, 0, 1, 1]), 1e-4).tolist() == [0.0] * 4


@pytest.mark.parametrize("name", ALL)
def test_order_and_names_of_groups_do_not_matter(name: str) -> None:
    compare, scores, groups = ALL[name], drawn(12, seed=1), torch.tensor([0, 1, 2] * 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compare(scores[order], groups[order] * 7 - 3), compare(scores, groups)[order])


@pytest.mark.parametrize("name", ALL)
def test_a_group_of_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least two responses to"):
        ALL[name](f64(1, 2, 3), torch.tensor([0, 0, 1]))
