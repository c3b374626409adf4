"""Batches of stored preference pairs to learn from, in place of rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.models.lm_head import head_logprobs
from pipeline.models.policy import Episodes, response_hidden, to_grid
from pipeline.models.seeding import permutation
from pipeline.training.experience import Experience
from pipeline.training.judging import Measured, RolloutContext


@dataclass(frozen=True)
class StoredPairs:
    """Pairs of responses, of which one was preferred."""

    episodes: Episodes
    """(2n, ...) on the CPU: the preferred response of a pair, then the other one."""

    def experience(self, context: RolloutContext, update: int, kl_coef: float) -> Experience:
        """The batch of one update: each pass over all pairs in a fresh order.

        New log-probs are compared with those of the reference, whoever wrote the responses. Raises `MemoryFull` in all
        processes when a row does not fit in one.
        """
        train = context.cfg.train
        pairs = in_turn(len(self.episodes.ended) // 2, train.batch_size // 2, update, train.seed, "stored pairs")
        rows = torch.stack([2 * pairs, 2 * pairs + 1], dim=1).flatten()
        device = next(context.actor.parameters()).device
        episodes = self.episodes.take(rows).each(lambda column: column.to(device))
        mine = context.ranks.share(range(len(rows)))
        share = episodes.each(lambda column: column[mine])
        with context.timed("score"):
            own = context.ranks.all_fit(lambda: _reference_logprobs(context, share))
            logprobs = context.ranks.join(own)
        nothing = torch.zeros_like(logprobs)
        preferred = torch.tensor([1.0, -1.0], device=device).repeat(len(pairs)).unsqueeze(1)
        advantages = torch.where(episodes.response_mask, preferred, 0.0)
        return Experience(episodes, Measured(logprobs, logprobs, nothing, nothing, None), advantages, None, kl_coef)


@torch.no_grad()
def _reference_logprobs(context: RolloutContext, episodes: Episodes) -> Tensor:
    """(B, T) nats, 0 on invalid tokens."""
    grid = torch.zeros(episodes.response_mask.shape, device=episodes.ended.device)

    def fill(rows: Tensor, chunk: Episodes) -> None:
        hidden = response_hidden(context.reference, chunk)
        logprobs = head_logprobs(context.reference, hidden, chunk.labels, context.cfg.train.temperature)
        grid[rows, : chunk.response_mask.shape[1]] = to_grid(logprobs, chunk.response_mask)

    with context.measuring():
        episodes.by_length(context.room, fill)
    return grid


def experience_of(rollout: Experience, pairs: StoredPairs | None, context: RolloutContext, update: int) -> Experience:
    """What the steps of an update learn from: the rollout, or stored pairs where the trial is configured to. Raises
    `ValueError` where these are missing."""
    if context.cfg.train.data == "rollouts":
        return rollout
    if pairs is None:
        raise ValueError("train.data 'pairs' needs stored pairs")
    return pairs.experience(context, update, rollout.kl_coef)


def in_turn(n: int, size: int, update: int, seed: int, label: str) -> Tensor:
    """Which of `n` things are taken in an update that takes `size` of them, (size,) int64: each pass over all of them
    in a fresh order."""
    places = range(update * size, (update + 1) * size)
    orders = {turn: permutation(n, seed, label, turn) for turn in {place // n for place in places}}
    return torch.stack([orders[place // n][place % n] for place in places])
