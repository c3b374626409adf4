from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import DTYPES, drawn, eps, grid, prefix
from torch import Tensor

from pipeline.algorithms.gae import segment_gae, starts
from pipeline.algorithms.mathematics.advantages import explained_variance, gae
from pipeline.algorithms.mathematics.kl import k2, k3
from pipeline.algorithms.mathematics.losses import policy_loss, value_loss
from pipeline.algorithms.mathematics.masking import masked_mean, masked_var, masked_whiten
from pipeline.algorithms.mathematics.shaping import (
    Credit,
    credited,
    group_non_score_reward,
    group_numbers,
    group_sums,
    non_score_reward,
    token_rewards,
)
from pipeline.models.policy import to_grid


@dataclass(frozen=True)
class Batch:
    """Two numbers a token and a score a response; whatever stands on invalid tokens is junk."""

    x: Tensor
    y: Tensor
    mask: Tensor
    scores: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(*(change(column) for column in vars(self).values()))

    @property
    def flat(self) -> tuple[Tensor, Tensor]:
        return self.x[self.mask], self.y[self.mask]


def rewards(b: Batch) -> Tensor:
    return token_rewards(b.scores, non_score_reward(b.x, b.y, b.mask, 0.3), b.mask)


def in_groups(b: Batch, credit: Credit) -> Tensor:
    return group_non_score_reward(b.x, b.y, b.mask, group_numbers(b.x > b.y), 0.3, credit)


def sums(b: Batch) -> Tensor:
    return group_sums(b.x, group_numbers(b.x > b.y), b.mask)


WHITENING: dict[str, Callable[[Batch], Tensor]] = {
    "masked_whiten": lambda b: masked_whiten(b.x, b.mask),
    "the whole shaping": lambda b: masked_whiten(gae(rewards(b), b.y, b.mask, 1.0, 0.95)[0], b.mask),
}
"""Look at other rows."""
GRIDS: dict[str, Callable[[Batch], Tensor]] = {
    "non_score_reward": lambda b: non_score_reward(b.x, b.y, b.mask, 0.3),
    "group_non_score_reward, shared": lambda b: in_groups(b, "shared"),
    "group_non_score_reward, last": lambda b: in_groups(b, "last"),
    "group_sums": sums,
    "credited": lambda b: credited(sums(b), group_numbers(b.x > b.y), b.mask, "shared"),
    "token_rewards": rewards,
    "gae advantages": lambda b: gae(b.x, b.y, b.mask, 0.9, 0.8)[0],
    "gae returns": lambda b: gae(b.x, b.y, b.mask, 0.9, 0.8)[1],
    "segment_gae": lambda b: segment_gae(b.x, b.y, starts(b.mask.sum(1), b.mask.shape[1], 2), b.mask, 0.8),
    "policy_loss": lambda b: to_grid(policy_loss(*b.flat, b.flat[0] + 1, 0.2)[0], b.mask),
    "value_loss": lambda b: to_grid(value_loss(*b.flat, b.flat[0] + 1, 0.2)[0], b.mask),
    **{
        kind.__name__: lambda b, kind=kind: to_grid(kind(b.flat[0] - b.flat[1]), b.mask)  # type: ignore[misc]
        for kind in (k2, k3)
    },
}
"""Give a grid: 0 on padding."""
NUMBERS: dict[str, Callable[[Batch], Tensor | float]] = {
    "masked_mean": lambda b: masked_mean(b.x, b.mask),
    "masked_var": lambda b: masked_var(b.x, b.mask),
    "explained_variance": lambda b: explained_variance(b.x, b.y, b.mask),
}
"""Give one number of the batch."""
ALL = {**GRIDS, **WHITENING, **NUMBERS}

# Eighths, so that equal numbers vary by exactly nothing in whatever order they are added up.
eighths = st.integers(-24, 24).map(lambda n: n / 8)
responses = st.lists(st.lists(st.tuples(eighths, eighths), min_size=1, max_size=5), min_size=1, max_size=4)
junk = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 0.7])
Rows = list[list[tuple[float, float]]]


def batch(rows: Rows, pad: int, rubbish: float) -> Batch:
    x, y = (grid([[token[place] for token in row] for row in rows], pad, rubbish) for place in (0, 1))
    return Batch(x, y, prefix(rows, pad), x[:, 0] - 2)


def alike(found: Tensor | float, wanted: Tensor | float) -> None:
    # Not to the bit: the mean that whitening takes away may be added up in another order.
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-9, atol=1e-9, equal_nan=True, check_dtype=False
    )


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(rows=responses, pad=st.integers(1, 4), rubbish=junk)
def test_pad_columns_change_nothing(name: str, rows: Rows, pad: int, rubbish: float) -> None:
    tight, loose = ALL[name](batch(rows, 0, 0.0)), ALL[name](batch(rows, pad, rubbish))
    if name not in NUMBERS:
        assert isinstance(loose, Tensor)
        assert bool((loose[~prefix(rows, pad)] == 0).all())
        loose = loose[:, :-pad]
    alike(loose, tight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_in_each_dtype_it_is_the_same_but_for_rounding_and_leaves_its_inputs_alone(
    name: str, dtype: torch.dtype
) -> None:
    if name in WHITENING and dtype == torch.float16:
        pytest.skip("1e-8 under the root is 0 in fp16")
    mask = torch.arange(6) < torch.tensor([6, 1, 4])[:, None]
    exact = Batch(drawn(3, 6, seed=0, dtype=dtype), drawn(3, 6, seed=1, dtype=dtype), mask, drawn(3, seed=2))
    exact = replace(exact, scores=exact.scores.to(dtype))
    kept = exact.each(Tensor.clone)
    found = ALL[name](exact)
    wanted = ALL[name](exact.each(lambda column: column if column.dtype == torch.bool else column.double()))
    bound = 40 * eps(dtype)  # a few roundings a token, of numbers that are at most about 10
    torch.testing.assert_close(
        torch.as_tensor(found).double(), torch.as_tensor(wanted).double(), rtol=bound, atol=bound
    )
    if isinstance(found, Tensor):
        assert found.dtype == dtype
    assert all(torch.equal(now, then) for now, then in zip(vars(exact).values(), vars(kept).values(), strict=True))


def test_sums_of_groups_are_rounded_once() -> None:
    """Added up in fp32 one by one, the small numbers would be lost."""
    x, mask = torch.tensor([[2.0**24, *[1.0] * 8]]), torch.ones(1, 9).bool()
    assert group_sums(x, torch.zeros(1, 9, dtype=torch.long), mask)[0, 0].item() == 2.0**24 + 8
