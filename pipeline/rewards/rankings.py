"""Rankings of K answers to one prompt: how a noisy annotator orders them, and the comparisons that they make. A pair is
a ranking of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.policy import Episodes, padded_episodes


@dataclass(frozen=True)
class Ranked:
    """n rankings of K answers to a prompt each."""

    answers: Sequence[Episodes]
    """K of n rows."""
    order: Tensor
    """(n, K) int64: which of the K answers is best, second, and so on."""

    @classmethod
    def of_pairs(cls, first: Episodes, second: Episodes, first_wins: Tensor) -> Ranked:
        """Return pairs as rankings of 2; `first_wins` (n,) bool is true where the first answer was preferred."""
        loses = (~first_wins).long()
        return cls((first, second), torch.stack([loses, 1 - loses], dim=1))


def best_first(points: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """A noisy annotator's order of K answers, by the model of Plackett (1975) and Luce (1959):

        P(i_1, ..., i_K) = product over m of exp(g_{i_m} / T) / sum over l >= m of exp(g_{i_l} / T).

    Sorting g / T + Gumbel noise draws from it (Yellott 1977), so of any two answers i is before j with probability
    sigmoid((g_i - g_j) / T), as for pairs. points and noise (n, K), noise uniform in [0, 1); T >= 0 in points, and 0
    is the judge itself, which puts equal answers in random order. Returns (n, K) int64.
    """
    if temperature > 0:
        return (points.double() / temperature - (-noise.double().log()).log()).argsort(dim=1, descending=True)
    by_chance = noise.argsort(dim=1)
    return by_chance.gather(1, points.gather(1, by_chance).argsort(dim=1, descending=True, stable=True))


def in_order(numbers: Tensor, order: Tensor) -> Tensor:
    """Sort a model's numbers of K answers, (n, K) or (n, K, d), best first by an order (n, K)."""
    return numbers.gather(1, order.view(*order.shape, *[1] * (numbers.dim() - 2)).expand_as(numbers))


def comparisons(order: Tensor) -> tuple[Tensor, Tensor]:
    """The K (K - 1) / 2 comparisons that each ranking (n, K) makes: the better answers and the worse ones, both
    (n, K (K - 1) / 2)."""
    better, worse = torch.triu_indices(order.shape[1], order.shape[1], 1)
    return order[:, better], order[:, worse]


RESPONSES = "pair_responses.parquet"


def response_table(first: Episodes, second: Episodes, first_wins: Tensor) -> pd.DataFrame:
    """Rows of n pairs; first_wins (n,) bool."""
    rows = list[dict[str, Any]]()
    for row, wins in enumerate(first_wins.tolist()):
        for side in (first, second) if wins else (second, first):
            prompt = side.query_responses[row, : side.context_length][side.query_mask[row]].tolist()
            response = side.responses[row][side.response_mask[row]].tolist()
            rows.append({"prompt": prompt, "response": response, "ended": bool(side.ended[row])})
    return pd.DataFrame(rows)


def read_responses(folder: Path, pad: int) -> Episodes:
    """The rows as episodes on the CPU: (2n, ...). Raises `UserError` where the two of a pair answer different
    prompts."""
    table = pd.read_parquet(folder / RESPONSES)
    prompts, responses = (table[name].tolist() for name in ("prompt", "response"))
    apart = sum(list(one) != list(other) for one, other in zip(prompts[::2], prompts[1::2], strict=True))
    if apart:
        raise UserError(
            f"train.data 'pairs' must be two responses to one prompt, and {apart} of {len(prompts) // 2} given pairs"
            " have no prompt, or one that was cut; give them prompts, raise reward.learned.max_tokens, or use"
            " train.data: rollouts"
        )
    return padded_episodes(prompts, responses, torch.tensor(table["ended"].to_numpy()), pad)


def read_ranked(folder: Path, pad: int, device: torch.device) -> Ranked:
    """The same as pairs, the preferred responses first."""
    both = read_responses(folder, pad).each(lambda column: column.to(device))
    first, second = both.take(slice(0, None, 2)), both.take(slice(1, None, 2))
    return Ranked.of_pairs(first, second, torch.ones(len(first.ended), dtype=torch.bool))
