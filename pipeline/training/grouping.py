"""The groups of tokens that a KL penalty sums over, in the responses at hand."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.token_groups import group_numbers
from pipeline.config.kl import KlConfig
from pipeline.models.policy import Episodes


def groups_of(episodes: Episodes, kl: KlConfig, closes: Tensor | None) -> Tensor | None:
    """Number of each response token's group, (B, T) int64; None where each token is by itself.

    closes (V,) bool: the tokens that end a clause or a sentence. Raises `ValueError` where it is needed and missing.
    """
    match kl.group:
        case "token":
            return None
        case "sequence":
            return torch.zeros_like(episodes.responses)
        case "clause" | "sentence":
            if closes is None:
                raise ValueError(f"kl.group '{kl.group}' needs the tokens that end one")
            return group_numbers(closes[episodes.responses])
        case _:
            assert_never(kl.group)
