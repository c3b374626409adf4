"""Decoding a batch of requests: every row has its own noise, temperature and end.

The same steps as `pipeline.models.sampling.sample`, which has one temperature and one length for all rows and answers
when all have ended; here someone looks at every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.anatomy import trunk
from pipeline.models.loading import CausalLM
from pipeline.models.policy import positions
from pipeline.models.precision import Precision
from pipeline.models.sampling import KEEP, distinct, inverse_cdf
from pipeline.models.seeding import uniforms

Step = Callable[[list[int], list[int], Tensor], Sequence[bool]]
"""Told the rows that are in the batch, the tokens that were drawn for them and their logits (rows, V); says which rows
go on."""


def noise_of(seed: int, index: int, tokens: int) -> Tensor:
    """Uniform numbers of completion `index` of a request, (tokens,) float64. They depend on nothing else; a longer row
    begins with a shorter one."""
    return uniforms(1, tokens, "serve", seed, index).squeeze(0)


@torch.inference_mode()
def decode_rows(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    noise: Sequence[Tensor],
    temperatures: Sequence[float],
    pad_id: int,
    step: Step,
) -> None:
    """Draw tokens for all rows until `step` has ended each of them; noise (T_b,) has a number for each token of row b.

    Equal prompts are read once where they stand together. Token t of a row is the inverse of the cumulative
    distribution softmax(logits / temperature) at ``noise[t]``, or the likeliest one at temperature 0.
    """
    from transformers import DynamicCache

    device = next(model.parameters()).device
    queries, query_mask = (tensor.to(device) for tensor in _padded(prompts, pad_id))
    draws = torch.nn.utils.rnn.pad_sequence(list(noise), batch_first=True).to(device)
    heat = torch.tensor(temperatures, device=device)
    rows, width = draws.shape
    mask = torch.cat([query_mask, query_mask.new_ones(rows, width)], dim=1).long()
    cache: Any = DynamicCache(config=model.config)
    body, head = trunk(model), model.get_output_embeddings()
    once, copies = distinct(queries, query_mask)
    tokens, seen, read = queries[once], queries.shape[1], mask[once, : queries.shape[1]]
    place = positions(read)
    live, open_ = list(range(rows)), [True] * rows
    with Precision.of(device).autocast():
        for t in range(width):
            output = body(
                input_ids=tokens, attention_mask=read, position_ids=place, past_key_values=cache, use_cache=True
            )
            last = output.last_hidden_state[:, -1]
            if t == 0 and len(last) < rows:
                cache.reorder_cache(copies)
                last, place = last[copies], place[copies]
            logits = head(last)
            chosen = _chosen(logits, draws[:, t], heat)
            at = [place_ for place_, going in enumerate(open_) if going]
            goes_on = step([live[i] for i in at], chosen[at].tolist(), logits[at])
            for i, going in zip(at, goes_on, strict=True):
                open_[i] = going
            if not any(open_):
                return
            tokens, place = chosen.unsqueeze(1), place[:, -1:] + 1
            if sum(open_) <= KEEP * len(live):
                kept = torch.tensor([i for i, going in enumerate(open_) if going], device=device)
                cache.reorder_cache(kept)
                tokens, place, mask, draws, heat = (tensor[kept] for tensor in (tokens, place, mask, draws, heat))
                live, open_ = [live[i] for i in kept.tolist()], [True] * len(kept)
            read = mask[:, : seen + t + 1]


def _chosen(logits: Tensor, noise: Tensor, temperatures: Tensor) -> Tensor:
    """A token of every row, (rows,) int64."""
    greedy = temperatures == 0
    best = logits.amax(1, keepdim=True)  # what is left is at most 0, so no temperature makes it infinite
    drawn = inverse_cdf((logits - best) / temperatures.masked_fill(greedy, 1.0).unsqueeze(1), noise)
    return torch.where(greedy, logits.argmax(1), drawn)


def _padded(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Left-padded ids (B, P) int64 and mask (B, P) bool."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in prompts])
    lengths = torch.tensor([len(row) for row in prompts])
    return ids, torch.arange(width) >= (width - lengths)[:, None]
