"""The training pairs of a learned reward as tokens, for those that learn from the pairs themselves.

``pair_responses.parquet`` has two rows for each training pair (prompt, response, ended): the preferred response, then
the other one, as they were labelled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.policy import Episodes, padded_episodes

RESPONSES = "pair_responses.parquet"


def response_table(first: Episodes, second: Episodes, first_wins: Tensor) -> pd.DataFrame:
    """Rows of n pairs; first_wins (n,) bool."""
    sides = [(first, second) if wins else (second, first) for wins in first_wins.tolist()]
    return pd.DataFrame([_as_tokens(side, row) for row, pair in enumerate(sides) for side in pair])


def _as_tokens(episodes: Episodes, row: int) -> dict[str, Any]:
    return {
        "prompt": episodes.query_responses[row, : episodes.context_length][episodes.query_mask[row]].tolist(),
        "response": episodes.responses[row][episodes.response_mask[row]].tolist(),
        "ended": bool(episodes.ended[row]),
    }


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
