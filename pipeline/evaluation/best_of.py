"""The best of several answers to each prompt by the training reward: how a policy answers where `evaluate.best_of` is
above 1. The gold judge never chooses.

The first draw has the noise of a policy that answers once, each further one noise of its own. So the samples for a
small n are the first of those for a larger n, and arms with equal n meet the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.models.policy import Episodes
from pipeline.rewards.base import Completions

Draw = Callable[[int], Completions]
"""One answer to every prompt, by the number of the draw."""
Score = Callable[[Completions], tuple[Tensor, Mapping[str, Tensor]]]
"""The calibrated reward (B,) on the CPU, and each part of a composite one by name."""


@dataclass(frozen=True)
class BestAnswers:
    """The answers of B prompts."""

    answers: Completions
    proxy: Tensor
    """(B,) calibrated reward, by which they were chosen: before EOS handling."""
    parts: Mapping[str, Tensor]
    sampled_tokens: int
    """Tokens of all draws, those that were not chosen included."""


def choose(count: int, draw: Draw, score: Score) -> BestAnswers:
    """Choose, for each prompt, the draw of 0 to `count` - 1 with the highest reward; of equal ones the first.

    Draws are exchangeable, so the first of equal ones is as good as one by lot. Two draws are in memory at once,
    whatever `count` is.
    """
    answers = draw(0)
    proxy, parts = score(answers)
    tokens = int(answers.episodes.lengths.sum())
    for number in range(1, count):
        other = draw(number)
        scores, others = score(other)
        rows = scores > proxy
        answers, proxy = _merged(rows, other, answers), torch.where(rows, scores, proxy)
        parts = {name: torch.where(rows, others[name], part) for name, part in parts.items()}
        tokens += int(other.episodes.lengths.sum())
    return BestAnswers(answers, proxy, parts, tokens)


def _merged(rows: Tensor, here: Completions, elsewhere: Completions) -> Completions:
    """`here` where `rows` (B,) is True, else `elsewhere`; both answer the same prompts, padded alike."""
    place = rows.to(here.episodes.ended.device)
    grids = zip(vars(here.episodes).values(), vars(elsewhere.episodes).values(), strict=True)
    episodes = Episodes(*(torch.where(place.view(-1, *[1] * (grid.dim() - 1)), grid, other) for grid, other in grids))
    texts = zip(rows.tolist(), here.texts, elsewhere.texts, strict=True)
    return Completions(episodes, here.prompts, [mine if chosen else other for chosen, mine, other in texts])


def kl_bound(n: int) -> float:
    """KL of the best of n samples of a policy to the policy, at most: log n - (n - 1) / n, nats per response.

    The KL is close to it where two samples rarely have the same score, and below it where many do; at every prompt
    (Beirami 2025, arXiv 2401.01879).

    >>> kl_bound(1), round(kl_bound(4), 4)
    (0.0, 0.6363)
    """
    return math.log(n) - (n - 1) / n


def kl_of_chosen(n: int, log_ratios: Tensor) -> Tensor:
    """KL of the best of n samples of a policy to the reference, at most; (B,) float64, nats per response.

    KL(best of n || ref) = KL(best of n || π) + E[log π - log ref], where the second is a mean over the chosen responses
    and the first is `kl_bound`. `log_ratios` (B, T): log π - log ref of their tokens, 0 on invalid ones. So a single
    response can come out below 0, their mean but for noise cannot.
    """
    return kl_bound(n) + log_ratios.double().sum(1)
