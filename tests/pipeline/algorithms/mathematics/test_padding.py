"""Laws that every masked function obeys: padding is never read, and rows do not know their place in the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import grid, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.advantages import explained_variance, gae
from pipeline.algorithms.mathematics.losses import policy_loss, value_loss
from pipeline.algorithms.mathematics.masking import masked_mean, masked_sum, masked_var, masked_whiten
from pipeline.algorithms.mathematics.shaping import group_non_score_reward, non_score_reward, token_rewards
from pipeline.algorithms.mathematics.token_groups import Credit, group_numbers
from pipeline.models.policy import to_grid


@dataclass(frozen=True)
class Batch:
    """Two numbers a token and a score a response; whatever stands on invalid tokens is junk."""

    x: Tensor
    y: Tensor
    mask: Tensor
    scores: Tensor

    def rows(self, order: Tensor) -> Batch:
        return Batch(self.x[order], self.y[order], self.mask[order], self.scores[order])


def rewards(b: Batch) -> Tensor:
    return token_rewards(b.scores, non_score_reward(b.x, b.y, b.mask, 0.3), b.mask)


def in_groups(b: Batch, credit: Credit) -> Tensor:
    return group_non_score_reward(b.x, b.y, b.mask, group_numbers(b.x > b.y), 0.3, "k3", credit)


# Functions that give a grid: 0 on padding, the same elsewhere.
GRIDS: dict[str, Callable[[Batch], Tensor]] = {
    "masked_whiten": lambda b: masked_whiten(b.x, b.mask),
    "masked_whiten, mean kept": lambda b: masked_whiten(b.x, b.mask, shift_mean=False),
    "non_score_reward": lambda b: non_score_reward(b.x, b.y, b.mask, 0.3),
    "group_non_score_reward, shared": lambda b: in_groups(b, "shared"),
    "group_non_score_reward, last": lambda b: in_groups(b, "last"),
    "token_rewards": rewards,
    "gae advantages": lambda b: gae(b.x, b.y, b.mask, 0.9, 0.8)[0],
    "gae returns": lambda b: gae(b.x, b.y, b.mask, 0.9, 0.8)[1],
    "the whole shaping": lambda b: masked_whiten(gae(rewards(b), b.y, b.mask, 1.0, 0.95)[0], b.mask),
    "policy_loss": lambda b: to_grid(policy_loss(b.x[b.mask], b.y[b.mask], b.x[b.mask] + 1, 0.2)[0], b.mask),
    "value_loss": lambda b: to_grid(value_loss(b.x[b.mask], b.y[b.mask], b.x[b.mask] + 1, 0.2)[0], b.mask),
}
# Functions that give one number of the batch.
NUMBERS: dict[str, Callable[[Batch], Tensor | float]] = {
    "masked_sum": lambda b: masked_sum(b.x, b.mask),
    "masked_mean": lambda b: masked_mean(b.x, b.mask),
    "masked_var": lambda b: masked_var(b.x, b.mask),
    "explained_variance": lambda b: explained_variance(b.x, b.y, b.mask),
}

# Eighths, so that equal numbers vary by exactly nothing in whatever order they are added up.
eighths = st.integers(-24, 24).map(lambda n: n / 8)
tokens = st.tuples(eighths, eighths)
responses = st.lists(st.lists(tokens, min_size=1, max_size=5), min_size=1, max_size=4)
junk = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 0.7])


def batch(rows: list[list[tuple[float, float]]], pad: int, rubbish: float) -> Batch:
    x, y = (grid([[token[place] for token in row] for row in rows], pad, rubbish) for place in (0, 1))
    return Batch(x, y, prefix(rows, pad), x[:, 0] - 2)


@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=25)
@given(rows=responses, pad=st.integers(1, 4), rubbish=junk)
def test_pad_columns_change_no_grid(name: str, rows: list[list[tuple[float, float]]], pad: int, rubbish: float) -> None:
    tight, loose = GRIDS[name](batch(rows, 0, 0.0)), GRIDS[name](batch(rows, pad, rubbish))
    width = tight.shape[1]
    # Not to the bit: the mean that whitening takes away may be added up in another order.
    assert torch.allclose(loose[:, :width], tight, rtol=1e-9, atol=1e-9)
    mask = prefix(rows, pad)
    assert bool((loose[~mask] == 0).all())


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=25)
@given(rows=responses, pad=st.integers(1, 4), rubbish=junk)
def test_pad_columns_change_no_number(
    name: str, rows: list[list[tuple[float, float]]], pad: int, rubbish: float
) -> None:
    tight, loose = float(NUMBERS[name](batch(rows, 0, 0.0))), float(NUMBERS[name](batch(rows, pad, rubbish)))
    assert loose == pytest.approx(tight, rel=1e-9, abs=1e-12, nan_ok=name == "explained_variance")


@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=25)
@given(rows=responses, rubbish=junk, data=st.data())
def test_rows_in_another_order_give_the_same_rows_in_that_order(
    name: str, rows: list[list[tuple[float, float]]], rubbish: float, data: st.DataObject
) -> None:
    one = batch(rows, 1, rubbish)
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    assert torch.allclose(GRIDS[name](one.rows(order)), GRIDS[name](one)[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=25)
@given(rows=responses, rubbish=junk, data=st.data())
def test_rows_in_another_order_give_the_same_number(
    name: str, rows: list[list[tuple[float, float]]], rubbish: float, data: st.DataObject
) -> None:
    one = batch(rows, 1, rubbish)
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    expected = float(NUMBERS[name](one))
    assert float(NUMBERS[name](one.rows(order))) == pytest.approx(
        expected, rel=1e-9, abs=1e-12, nan_ok=name == "explained_variance"
    )


@pytest.mark.parametrize(
    "name",
    [
        "non_score_reward",
        "group_non_score_reward, shared",
        "group_non_score_reward, last",
        "token_rewards",
        "gae advantages",
        "gae returns",
        "policy_loss",
        "value_loss",
    ],
)
@settings(max_examples=25)
@given(rows=responses)
def test_a_row_alone_is_as_in_its_batch(name: str, rows: list[list[tuple[float, float]]]) -> None:
    """Only whitening looks at other rows; so rollouts may be measured in any micro-batches."""
    together = GRIDS[name](batch(rows, 0, 0.0))
    for index, row in enumerate(rows):
        alone = GRIDS[name](batch([row], 0, 0.0))
        assert torch.allclose(alone[0], together[index, : len(row)], rtol=1e-12, atol=1e-12)
