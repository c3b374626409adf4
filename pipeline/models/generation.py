"""Sampling responses, with the noise given from outside.

Token t of row b is the inverse of the cumulative distribution at ``noise[b, t]``. So a response depends on
its prompt, the network and its own row of noise alone: not on the batch around it, and two policies given
the same noise are compared under common random numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.models.policy import Episodes, positions, response_mask, trunk


def sample(
    model: CausalLM, queries: Tensor, query_mask: Tensor, noise: Tensor, *, eos_id: int, pad_id: int, temperature: float, batch: int
) -> Episodes:
    """Sample one response per prompt, at most T tokens, `batch` rows at a time.

    queries (B, P) int64 left-padded, query_mask (B, P) bool, noise (B, T) in [0, 1). The distribution is
    the whole softmax of logits / temperature: nothing truncates it, or the KL could come out negative.
    """
    parts = [
        _sample(model, queries[rows], query_mask[rows], noise[rows], eos_id, pad_id, temperature) for rows in _slices(len(queries), batch)
    ]
    responses = torch.cat([tokens for tokens, _ in parts])
    lengths = torch.cat([length for _, length in parts])
    mask = response_mask(lengths, noise.shape[1])
    last = responses.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
    return Episodes(torch.cat([queries, responses], dim=1), query_mask, mask, last == eos_id)


def _slices(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


@torch.inference_mode()
def _sample(
    model: CausalLM, queries: Tensor, query_mask: Tensor, noise: Tensor, eos_id: int, pad_id: int, temperature: float
) -> tuple[Tensor, Tensor]:
    from transformers import DynamicCache

    rows, width = noise.shape
    noise = noise.to(queries.device, torch.float64)
    cache: Any = DynamicCache(config=model.config)
    mask, tokens = query_mask.long(), queries
    responses = torch.full((rows, width), pad_id, dtype=queries.dtype, device=queries.device)
    lengths = torch.full((rows,), width, dtype=torch.long, device=queries.device)
    alive = torch.ones(rows, dtype=torch.bool, device=queries.device)
    head = model.get_output_embeddings()
    for t in range(width):
        place = positions(mask)[:, -tokens.shape[1] :]
        output = trunk(model)(input_ids=tokens, attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True)
        chosen = inverse_cdf(head(output.last_hidden_state[:, -1]).float() / temperature, noise[:, t])
        responses[:, t] = torch.where(alive, chosen, pad_id)
        ends = alive & (chosen == eos_id)
        lengths[ends] = t + 1
        alive = alive & ~ends
        if not alive.any():
            break
        tokens = chosen.unsqueeze(1)
        mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
    return responses, lengths


def inverse_cdf(logits: Tensor, noise: Tensor) -> Tensor:
    """Sample from softmax(logits) by one uniform number a row; logits (B, V), noise (B,), returns (B,) int64.

    >>> inverse_cdf(torch.log(torch.tensor([[0.2, 0.5, 0.3]])), torch.tensor([0.65])).tolist()
    [1]
    """
    # In float64: summed in fp32, the tail of a vocabulary of 150,000 falls below the rounding and is never drawn.
    cumulative = torch.softmax(logits.float(), dim=-1).double().cumsum(-1)
    # Scaling by the last entry absorbs the rounding of the sum, so that no draw falls beyond the vocabulary.
    target = (noise * cumulative[:, -1]).unsqueeze(1)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


def tokenize_prompts(tokenizer: Any, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Left-padded prompts: ids (B, P) int64 and mask (B, P) bool, the mask made from lengths."""
    rows = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = torch.full((len(rows), width), int(tokenizer.pad_token_id))
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row)
    return ids, torch.arange(width) >= (width - lengths)[:, None]


def decode(tokenizer: Any, episodes: Episodes) -> list[str]:
    """Completions as text, cut at their recorded lengths, special tokens left out."""
    rows = [row[:length] for row, length in zip(episodes.responses.tolist(), episodes.lengths.tolist(), strict=True)]
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return texts
