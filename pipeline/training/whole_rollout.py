"""Passes over a whole rollout in training: as many episodes at a time as there is room for, shared by all processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import k3
from pipeline.models.lm_head import head_logprobs
from pipeline.models.policy import response_hidden
from pipeline.models.shelves import Shelf
from pipeline.training.learner import Learner
from pipeline.training.lesson import Lesson, tokens_of


def token_means(rollout: Lesson, learner: Learner, sums: Callable[[Shelf], list[Tensor]]) -> list[Tensor]:
    """Means over all valid tokens of a rollout. ``sums(rows)`` gives sums over the tokens of some rows, and must change
    nothing.

    The cut into rows changes results by rounding alone. Raises `MemoryFull`.
    """
    mask, ranks = rollout.episodes.response_mask, learner.ranks
    mine = ranks.part(torch.arange(len(mask)))

    def over(size: int) -> list[Tensor]:
        parts = rollout.shelves(size, mine)
        totals = sums(next(parts))
        for part in parts:
            totals = [total.add_(more) for total, more in zip(totals, sums(part), strict=True)]
        return totals

    totals = ranks.all_fit(lambda: learner.micro_batch.fit(over))
    ranks.add(totals)
    count = mask.sum()
    return [total.div_(count) for total in totals]


@torch.no_grad()
def moved_kl(rollout: Lesson, learner: Learner) -> float:
    """Mean KL(old || new) from the policy that sampled to the present one, nats per token; by k3 on the samples."""
    lm, temperature = learner.actor.lm, learner.cfg.train.temperature

    def sums(rows: Shelf) -> list[Tensor]:
        episodes = rollout.episodes.take(rows)
        with learner.precision.autocast():
            new = head_logprobs(lm, response_hidden(lm, episodes), episodes.labels, temperature)
        return [k3(tokens_of(rollout, rows).logprobs - new).sum()]

    return float(token_means(rollout, learner, sums)[0])


MEASUREMENTS: dict[str, Callable[[Lesson, Learner], float]] = {"policy/old_kl": moved_kl}
"""What a part may want after an update."""
