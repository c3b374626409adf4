"""Episodes with their left padding taken out, for networks that read whole episodes and never go on from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.models.policy import Episodes, trunk


def flush_left(episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Tokens (B, L) with every prompt beginning in column 0, and the column of every first response token (B,).

    L is the longest prompt and response together. What stands behind a response means nothing.

    >>> from pipeline.models.policy import response_mask
    >>> padded = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 0]])
    >>> query_mask = torch.tensor([[False, False, True], [True, True, True]])
    >>> tokens, starts = flush_left(Episodes(padded, query_mask, response_mask(torch.tensor([2, 1]), 2), torch.ones(2).bool()))
    >>> tokens[0, :3].tolist(), tokens[1].tolist(), starts.tolist()
    ([5, 6, 7], [1, 2, 3, 4], [1, 3])
    """
    starts = episodes.query_mask.sum(1)
    width = int((starts + episodes.lengths).max())
    columns = (episodes.context_length - starts).unsqueeze(1) + torch.arange(width, device=starts.device)
    return episodes.query_responses.gather(1, columns.clamp(max=episodes.query_responses.shape[1] - 1)), starts


def states(model: CausalLM, tokens: Tensor) -> Tensor:
    """Hidden states (B, L, H) of rows (B, L) that begin in column 0.

    No mask is needed: the network is causal, so nothing before the end of a row sees what stands behind it.
    """
    output: Any = trunk(model)(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    hidden: Tensor = output.last_hidden_state
    return hidden
