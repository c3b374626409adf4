"""Who samples the rollouts: the seam at which a faster sampler can stand.

Noise comes from outside, so that any two samplers give the same text for the same numbers, up to precision. The
log-probabilities that a loss uses are never a sampler's: they come from the training forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.models.policy import Episodes
from pipeline.models.sampling import sample
from pipeline.resources.out_of_memory import Room


@dataclass(frozen=True)
class Drawn:
    """Episodes, and what the sampler's own network said of their tokens."""

    episodes: Episodes
    logprobs: Tensor | None
    """(B, T) nats, at the sampling temperature, 0 on invalid tokens. None where the network is that of the training
    forward, in the same precision."""


class Sampler(Protocol):
    """Samples one response per prompt from the whole distribution; nothing truncates it."""

    def sample(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Episodes:
        """queries (B, P) int64 left-padded, query_mask (B, P) bool, noise (B, T) in [0, 1), uniform. Raises
        `MemoryFull`."""

    def draw(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Drawn:
        """The same with log-probabilities, which show how far the sampler is from the training forward."""

    def greedy(self, queries: Tensor, query_mask: Tensor, longest: int) -> Episodes:
        """The likeliest token at each place, at most `longest` of them; the rest as for `sample`."""

    def refresh(self) -> None:
        """The weights have changed since the last call; a sampler with a copy of its own brings it up to date."""

    def rest(self) -> None:
        """Nothing is sampled before the next `refresh`; a sampler that holds memory may free it."""

    def give_way(self) -> bool:
        """Free all memory, from now on between any two rollouts, and say whether there was any."""


@dataclass(frozen=True)
class EagerSampler:
    """Samples with the network itself, one forward a token; for every architecture and device."""

    lm: CausalLM
    temperature: float
    room: Room
    """Rows in memory at once; changes nothing."""
    eos_id: int
    pad_id: int

    def sample(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Episodes:
        return self._sample(queries, query_mask, noise, self.temperature)

    def draw(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Drawn:
        return Drawn(self.sample(queries, query_mask, noise), None)

    def greedy(self, queries: Tensor, query_mask: Tensor, longest: int) -> Episodes:
        return self._sample(queries, query_mask, torch.zeros(len(queries), longest), 0.0)

    def _sample(self, queries: Tensor, query_mask: Tensor, noise: Tensor, temperature: float) -> Episodes:
        ids = {"eos_id": self.eos_id, "pad_id": self.pad_id}
        return sample(self.lm, queries, query_mask, noise, **ids, temperature=temperature, room=self.room)

    def refresh(self) -> None:
        """Nothing to do: it has no copy."""

    def rest(self) -> None:
        """Nothing to do: it holds nothing."""

    def give_way(self) -> bool:
        return False
