"""Data that the epochs of an update learn from, and some rows of it as the input of losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.shaping import group_numbers
from pipeline.algorithms.settings import KlConfig
from pipeline.models.policy import Episodes
from pipeline.models.seeding import permutation


@dataclass(frozen=True)
class Measured:
    """Measurements by the networks at every valid token; grids are (B, T), 0 on invalid tokens, nats."""

    logprobs: Tensor
    ref_logprobs: Tensor
    kl: Tensor
    """Exact, over the vocabulary."""
    entropy: Tensor
    """Exact, of the policy."""
    values: Tensor | None
    """Values by the critic, in score units; None without one."""
    start_kl: Tensor | None = None
    """Exact, to the policy that the round began with; None in a trial without rounds."""


@dataclass(frozen=True)
class Experience:
    """Episodes with everything the losses need; grids are (B, T), 0 on invalid tokens."""

    episodes: Episodes
    measured: Measured
    advantages: Tensor
    returns: Tensor | None
    """Targets of the critic; None without one."""
    kl_coef: float
    """beta in force."""
    groups: Tensor | None = field(default=None, kw_only=True)
    """(B, T) number of each token's group, where the KL penalty in the loss is one on groups."""

    def micro_batches(self, size: int, rows: Tensor) -> Iterator[Rows]:
        """The rows (n,), on the host, `size` at a time, sorted by length."""
        parts = self.episodes.buckets(size, rows.to(self.episodes.ended.device))
        return (Rows(self, part) for part in parts)


@dataclass
class Rows:
    """Some rows of an experience that go through a network together: b responses with N valid tokens."""

    experience: Experience
    index: Tensor
    """(b,) which of the B."""
    weight: Tensor | None = None
    """(N,) of a penalty or a bonus of a token: what the gradient of its log-probability is multiplied with for a unit
    of advantage, so that a beta means the same in the loss as in the reward. None: 1 everywhere. The surrogate sets
    it."""
    now: Callable[[], Tensor] = lambda: torch.empty(0)
    """Gives (N,) log-probs by the network at hand, without gradients, at the cost of a pass through its head."""

    @cached_property
    def episodes(self) -> Episodes:
        """The b of them."""
        return self.experience.episodes.take(self.index)

    @property
    def mask(self) -> Tensor:
        """(b, T)."""
        return self.episodes.response_mask

    def valid(self, grid: Tensor) -> Tensor:
        """(N,) entries of a grid (B, T) at the valid tokens."""
        return grid[self.index, : self.mask.shape[1]][self.mask]

    @cached_property
    def old_logprobs(self) -> Tensor:
        """(N,) of the policy that sampled, nats."""
        return self.valid(self.experience.measured.logprobs)

    @cached_property
    def ref_logprobs(self) -> Tensor:
        """(N,) of the reference, nats."""
        return self.valid(self.experience.measured.ref_logprobs)

    @cached_property
    def advantages(self) -> Tensor:
        """(N,)."""
        return self.valid(self.experience.advantages)

    def weighted(self, tokens: slice, losses: Tensor) -> Tensor:
        """Penalties or bonuses of some tokens, (n,), with their weight in the loss."""
        return losses if self.weight is None else self.weight[tokens] * losses

    def to_tokens(self, numbers: Tensor) -> Tensor:
        """(N,) the number of each response, (b,), on all its tokens."""
        return numbers.repeat_interleave(self.episodes.lengths)


Entropy = Callable[[], Tensor]
"""Gives (n,), the exact entropy of the policy as it is, nats."""


@dataclass(frozen=True)
class LossTerm:
    """A term of the policy's loss on some rows, as what the chunked head can differentiate: a loss of each token."""

    loss: Callable[[slice, Tensor, Entropy], Tensor]
    """Function from a slice of the N tokens, their new log-probs (n,) and entropies to losses (n,) whose gradient, not
    value, is the term's."""
    sums: Callable[[Tensor], dict[str, Tensor]] = lambda logprobs: {}
    """Function from all new log-probs (N,) to metrics, which are summed and divided by the mini-batch's tokens."""


def summed(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums in fp32, detached."""
    return {name: column.detach().sum(dtype=torch.float32) for name, column in metrics.items()}


def groups_of(episodes: Episodes, kl: KlConfig, closes: Tensor | None) -> Tensor:
    """Number of each response token's group, (B, T) int64, where `kl.group` is not a token.

    closes (V,) bool: the tokens that end a clause or a sentence, which these two need.
    """
    if kl.group == "sequence":
        return torch.zeros_like(episodes.responses)
    assert closes is not None
    return group_numbers(closes.to(episodes.responses.device)[episodes.responses])


def in_turn(n: int, size: int, update: int, seed: int, label: str) -> Tensor:
    """Choose `size` of `n` things for an update, (size,) int64: each pass over all of them is in a fresh order."""
    places = range(update * size, (update + 1) * size)
    orders = {turn: permutation(n, seed, label, turn) for turn in {place // n for place in places}}
    return torch.stack([orders[place // n][place % n] for place in places])
