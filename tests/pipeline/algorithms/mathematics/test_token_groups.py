"""Groups of tokens: their numbers, sums and credit by hand, and what must not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import DTYPES, drawn, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.token_groups import credited, group_ends, group_numbers, group_sums

NAN = float("nan")
CLOSES = torch.tensor([[0, 1, 0, 0, 1, 0], [0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]).bool()
MASK = prefix([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4], [1]])
X = torch.tensor([[1.0, 2, 4, 8, 16, 32], [1, 2, 4, 8, NAN, NAN], [5, NAN, NAN, NAN, NAN, NAN]]).double()
rows = st.lists(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=4)


def test_by_hand() -> None:
    groups = group_numbers(CLOSES)
    assert groups[:2].tolist() == [[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 2, 3]]
    assert group_sums(X, groups, MASK).tolist() == [[3, 3, 28, 28, 28, 32], [7, 7, 7, 8, 0, 0], [5, 0, 0, 0, 0, 0]]
    assert group_ends(groups, MASK).int().tolist() == [[0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    whole = torch.tensor([[6.0, 6, 9, 9, 9, 7], [6, 6, 6, 8, NAN, NAN], [5, NAN, NAN, NAN, NAN, NAN]])
    shared = [[3, 3, 3, 3, 3, 7], [2, 2, 2, 8, 0, 0], [5, 0, 0, 0, 0, 0]]
    assert credited(whole, groups, MASK, "shared").tolist() == shared
    last = [[0, 6, 0, 0, 9, 7], [0, 0, 6, 8, 0, 0], [5, 0, 0, 0, 0, 0]]
    assert credited(whole, groups, MASK, "last").tolist() == last


def test_a_response_that_is_cut_within_a_group_closes_it() -> None:
    """No token of the second row closes anything, and its third column is padding that would."""
    groups, mask = group_numbers(torch.tensor([[False, False, True, False]])), prefix([[1, 2]], pad=2)
    assert group_sums(torch.ones(1, 4), groups, mask).tolist() == [[2, 2, 0, 0]]
    assert group_ends(groups, mask).tolist() == [[False, True, False, False]]


def laid_out(responses: list[list[tuple[float, bool]]], pad: int, junk: Any) -> tuple[Tensor, Tensor, Tensor]:
    """x, group numbers and mask; on padding `junk`, and tokens that close groups."""
    mask = prefix(responses, pad)
    x, closes = torch.full(mask.shape, junk, dtype=torch.float64), torch.ones_like(mask)
    for row, response in enumerate(responses):
        x[row, : len(response)] = torch.tensor([value for value, _ in response], dtype=torch.float64)
        closes[row, : len(response)] = torch.tensor([closing for _, closing in response])
    return x, group_numbers(closes), mask


@given(responses=rows, pad=st.integers(0, 3), junk=st.sampled_from([NAN, float("inf"), 1e300]))
def test_against_a_loop_over_tokens(responses: list[list[tuple[float, bool]]], pad: int, junk: float) -> None:
    x, groups, mask = laid_out(responses, pad, junk)
    sums, ends = group_sums(x, groups, mask), group_ends(groups, mask)
    shared, last = (credited(sums, groups, mask, how) for how in ("shared", "last"))  # type: ignore[arg-type]
    for row, response in enumerate(responses):
        begin = 0
        for place, (_, closing) in enumerate(response):
            if not closing and place < len(response) - 1:
                continue
            members, total = slice(begin, place + 1), sum(value for value, _ in response[begin : place + 1])
            assert sums[row, members].tolist() == pytest.approx([total] * (place + 1 - begin), abs=1e-12)
            assert ends[row, members].tolist() == [*[False] * (place - begin), True]
            assert shared[row, members].sum().item() == pytest.approx(total, abs=1e-12)
            assert shared[row, members].max() == shared[row, members].min()
            assert last[row, members].tolist() == [*[0.0] * (place - begin), sums[row, place].item()]
            begin = place + 1
    for grid in (sums, shared, last):
        assert not grid[~mask].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_group_of_one_token_is_that_token_to_the_bit(dtype: torch.dtype) -> None:
    x, mask = drawn(3, 6, seed=1, dtype=dtype), MASK
    alone = group_numbers(torch.ones_like(mask))
    wanted = torch.where(mask, x, 0.0).to(dtype)
    sums = group_sums(x, alone, mask)
    assert sums.dtype == dtype
    assert torch.equal(sums, wanted)
    for how in ("shared", "last"):
        found = credited(sums, alone, mask, how)  # type: ignore[arg-type]
        assert found.dtype == dtype
        assert torch.equal(found, wanted)


def test_sums_are_rounded_once_and_padding_moves_no_digit() -> None:
    """Added up in fp32 one by one, the small numbers would be lost."""
    x = torch.tensor([[2.0**24, *[1.0] * 8]])
    groups, mask = torch.zeros(1, 9, dtype=torch.long), torch.ones(1, 9).bool()
    assert group_sums(x, groups, mask)[0, 0].item() == 2.0**24 + 8
    values = drawn(4, 30, seed=2, dtype=torch.float32)
    closes, valid = drawn(4, 30, seed=3) > 1, torch.arange(30) < torch.tensor([[30], [7], [19], [1]])
    tight = group_sums(values, group_numbers(closes), valid)
    wide = torch.nn.functional.pad(values, (0, 9), value=NAN), torch.nn.functional.pad(closes, (0, 9), value=True)
    loose = group_sums(wide[0], group_numbers(wide[1]), torch.nn.functional.pad(valid, (0, 9)))
    assert torch.equal(loose[:, :30], tight)
    assert torch.equal(group_sums(values[1:2], group_numbers(closes[1:2]), valid[1:2]), tight[1:2])
