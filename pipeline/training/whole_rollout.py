"""Passes over a whole rollout in training: as many episodes at a time as there is room for, shared by all processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import k3
from pipeline.models.lm_head import head_logprobs
from pipeline.models.micro_batches import MicroBatch
from pipeline.models.policy import response_hidden
from pipeline.training.experience import Experience, tokens_of
from pipeline.training.learner import Learner


def token_means(rollout: Experience, learner: Learner, sums: Callable[[MicroBatch], list[Tensor]]) -> list[Tensor]:
    """Means over all valid tokens of a rollout. ``sums(rows)`` gives sums over the tokens of some rows, and must change
    nothing.

    The cut into rows changes results by rounding alone. Raises `MemoryFull`.
    """
    mask, ranks = rollout.episodes.response_mask, learner.ranks
    mine = ranks.part(torch.arange(len(mask)))

    def over(size: int) -> list[Tensor]:
        parts = rollout.micro_batches(size, mine)
        totals = sums(next(parts))
        for part in parts:
            totals = [total.add_(more) for total, more in zip(totals, sums(part), strict=True)]
        return totals

    totals = ranks.all_fit(lambda: learner.room.fit(over))
    ranks.add(totals)
    count = mask.sum()
    return [total.div_(count) for total in totals]


@torch.no_grad()
def moved_kl(rollout: Experience, learner: Learner) -> float:
    """Mean KL(old || new) from the policy that sampled to the present one, nats per token; by k3 on the samples."""
    lm, temperature = learner.actor.lm, learner.cfg.train.temperature

    def sums(rows: MicroBatch) -> list[Tensor]:
        episodes = rollout.episodes.take(rows)
        with learner.precision.autocast():
            new = head_logprobs(lm, response_hidden(lm, episodes), episodes.labels, temperature)
        return [k3(tokens_of(rollout, rows).logprobs - new).sum()]

    return float(token_means(rollout, learner, sums)[0])


MEASUREMENTS: dict[str, Callable[[Experience, Learner], float]] = {"policy/old_kl": moved_kl}
"""What a part may want after an update."""
