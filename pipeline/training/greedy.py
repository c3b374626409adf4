"""Greedy responses as a baseline: sampled beside a rollout, scored and measured as its responses are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.training.judging import Prompts, RolloutContext, measure, score_in_parts, shaped
from pipeline.training.processes import Ranks


@dataclass(frozen=True)
class GreedyBaseline:
    """What the greedy responses to the prompts of B rows are worth."""

    rewards: Tensor
    """(B,) score and KL penalty, score units; equal for the rows of one prompt."""
    tokens: Tensor
    """(B,) int64 valid tokens of the greedy response, on the first row of its prompt; 0 on the others."""

    def joined(self, ranks: Ranks) -> GreedyBaseline:
        """Of all processes."""
        return GreedyBaseline(ranks.join(self.rewards), ranks.join(self.tokens))


def greedy_baseline(context: RolloutContext, prompts: Prompts, share: slice, kl_coef: float) -> GreedyBaseline:
    """The greedy responses to the prompts of some rows, each sampled once, scored and measured as the others are."""
    cfg, rows = context.cfg, torch.tensor(prompts.rows[share])
    _, place, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    queries, mask = prompts.queries[share], prompts.query_mask[share]
    with context.timed("generate"):
        episodes = context.sampler.greedy(queries[first], mask[first], cfg.train.response_length)
    with context.timed("score"), torch.no_grad():
        scores = score_in_parts(context, episodes, rows[first].tolist())
        with context.measuring():
            measured = measure(context.actor, context.reference, episodes, cfg.train.temperature, context.room)
        final, non_score = shaped(context, scores, episodes, measured, kl_coef)
    once = torch.zeros(len(rows), dtype=torch.long, device=final.device)
    once[first] = episodes.lengths
    return GreedyBaseline((final + non_score.sum(1))[place.to(final.device)], once)
