"""Groups of consecutive tokens of a response: clauses, sentences, or all of it.

Grids are (B, T); mask is True on valid tokens, a prefix of each row. A group is known by its number, which counts the
groups that end before it in its row. What stands on invalid tokens is never read; results are 0 there.
"""

from __future__ import annotations

from typing import Literal, assert_never

import torch
from torch import Tensor

Credit = Literal["shared", "last"]


def group_numbers(closes: Tensor) -> Tensor:
    """Number of tokens before each one that close a group: (B, T) bool to (B, T) int64.

    The last valid token of a row closes its group whatever `closes` holds, since no valid token follows it.

    >>> group_numbers(torch.tensor([[False, True, False, True, False]])).tolist()
    [[0, 0, 1, 1, 2]]
    """
    return closes.cumsum(1) - closes.long()


def group_sums(x: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Σ x over the valid tokens of its group, on each of them; (B, T) in the units and the dtype of x.

    >>> x, groups = torch.tensor([[1.0, 2.0, 4.0, 9.0]]), torch.tensor([[0, 0, 1, 1]])
    >>> group_sums(x, groups, torch.tensor([[True, True, True, False]])).tolist()
    [[3.0, 3.0, 4.0, 0.0]]
    """
    # In fp64, so that the columns of padding, which go with the micro-batch, do not move the last digit.
    valid = torch.where(mask, x, torch.zeros_like(x)).double()
    sums = torch.zeros_like(valid).scatter_add(1, groups, valid).gather(1, groups)
    return torch.where(mask, sums, 0.0).to(x.dtype)


def credited(whole: Tensor, groups: Tensor, mask: Tensor, credit: Credit) -> Tensor:
    """Spread the worth of a group over its tokens: whole (B, T), equal on the tokens of a group, to (B, T).

        shared: whole / n on each of its n valid tokens;  last: whole on the last valid one, 0 on the others

    Σ over a response is that of its groups, in the units and the dtype of `whole`.
    """
    match credit:
        case "shared":
            sizes = torch.zeros_like(groups).scatter_add(1, groups, mask.long()).gather(1, groups)
            return torch.where(mask, whole / sizes.clamp(min=1), torch.zeros_like(whole))
        case "last":
            return torch.where(group_ends(groups, mask), whole, torch.zeros_like(whole))
        case _:
            assert_never(credit)


def group_ends(groups: Tensor, mask: Tensor) -> Tensor:
    """True on the last valid token of each group; (B, T) bool.

    >>> group_ends(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[True, True, True, False]])).tolist()
    [[False, True, True, False]]
    """
    behind = torch.ones_like(mask[:, :1])
    other = torch.cat([groups[:, 1:] != groups[:, :-1], behind], dim=1)
    return mask & (other | ~torch.cat([mask[:, 1:], ~behind], dim=1))
