"""A reward against opponents: an answer compared with answers of another policy to the same prompt.

The opponents' numbers are computed once, by the reward stage, and looked up by prompt: a scalar score is a single
number, a general preference model's embedding several (`pipeline.rewards.pairwise`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.rewards.base import Completions

Numbers = Callable[[Completions], Tensor]
"""Of each answer a score, (B,), or an embedding, (B, d)."""
Compare = Callable[[Tensor, Tensor], Tensor]
"""Numbers of answers, (B,) or (B, d), and of their k opponents, (B, k) or (B, k, d): rewards (B,)."""
Table = Mapping[str, Tensor]
"""Of each prompt the numbers of its k opponents, (k,) or (k, d)."""


def less_mean(mine: Tensor, theirs: Tensor) -> Tensor:
    """A score less the mean score of k opponents, (B,); scores (B,) against (B, k).

    Computed in fp64: scores that lie close together would lose most of their digits in an fp32 mean.
    """
    return (mine.double() - theirs.double().mean(1)).float()


class Against:
    """A `Reward`: what `compare` makes of an answer's numbers and of those of the opponents of its prompt.

    Raises `UserError` for a prompt without opponents.
    """

    def __init__(self, numbers: Any, compare: Compare, table: Table) -> None:
        self._numbers, self._compare, self._table = numbers, compare, table
        self.networks: Sequence[Any] = numbers.networks

    def __call__(self, completions: Completions) -> Tensor:
        mine: Tensor = self._numbers(completions)
        return self._compare(mine, torch.stack([self._opponents(prompt) for prompt in completions.prompts]))

    def _opponents(self, prompt: str) -> Tensor:
        if prompt not in self._table:
            raise UserError(
                f"reward.against: there are no opponents for the prompt {prompt!r}; answers to compare with are drawn"
                " for the training and the held-out prompts of the trial alone"
            )
        return self._table[prompt]
