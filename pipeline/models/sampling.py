"""Sampling with the noise given from outside: the seam at which any sampler can stand, and the sampler for a CPU.

Token t of row b is the inverse of the cumulative distribution at ``noise[b, t]``. So a response depends on
its prompt, the network and its own row of noise alone, not on the batch around it. Policies that are given the
same noise can be compared with each other under common random numbers: for differences of means only, never for
the share of answers that are better (`pipeline.evaluation.heldout`).

The log-probabilities that a loss uses are never a sampler's: they come from the training forward.

transformers has a `generate` of its own, which serves on a card (`pipeline.models.static_sampler`). On a CPU it takes
two to three times as long for a small network: it reads equal prompts anew, and rows that have ended stay in its
batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.models import cpu
from pipeline.models.anatomy import trunk
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, positions, response_mask

CARD_LOGITS = 2**24
"""Logits that a token is drawn from at once on a card, which bounds the memory of their float64 sums."""
KEEP = 0.9
"""Rows that have ended leave the batch when at most this fraction of it is left."""


@dataclass(frozen=True)
class EagerSampler:
    """Samples one response per prompt with the network itself, one forward a token; for every architecture and device.

    The distribution is the whole softmax of logits / temperature: nothing truncates it, or the KL could come out
    negative. At temperature 0 the likeliest token is taken, whatever the noise.
    """

    lm: CausalLM
    temperature: float
    room: Room
    """Rows in memory at once; changes nothing."""
    eos_id: int
    pad_id: int

    def sample(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Episodes:
        """queries (B, P) int64 left-padded, query_mask (B, P) bool, noise (B, T) in [0, 1), uniform. Raises
        `MemoryFull`."""
        parts = self.room.over(len(queries), lambda rows: self.some(queries[rows], query_mask[rows], noise[rows]))
        responses = torch.cat(parts)
        ends, width = responses == self.eos_id, noise.shape[1]
        ended = ends.any(1)
        mask = response_mask(torch.where(ended, ends.int().argmax(1) + 1, width), width)
        return Episodes(torch.cat([queries, responses], dim=1), query_mask, mask, ended)

    def greedy(self, queries: Tensor, query_mask: Tensor, longest: int) -> Episodes:
        """The likeliest token at each place, at most `longest` of them; the rest as for `sample`."""
        return replace(self, temperature=0.0).sample(queries, query_mask, torch.zeros(len(queries), longest))

    @torch.inference_mode()
    def some(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Tensor:
        """Responses (B, T) of rows that are in memory together; what stands behind their ends means nothing."""
        from transformers import DynamicCache

        rows, width = noise.shape
        responses = torch.full((rows, width), self.pad_id, dtype=queries.dtype, device=queries.device)
        noise = noise.to(queries.device, torch.float64)
        mask = torch.cat([query_mask, query_mask.new_ones(rows, width)], dim=1).long()
        cache: Any = DynamicCache(config=self.lm.config)
        body, head = trunk(self.lm), self.lm.get_output_embeddings()
        # The responses to one prompt stand together: it is read once, and what was read is copied for each.
        once, copies = distinct(queries, query_mask)
        tokens, seen, read = queries[once], queries.shape[1], mask[once, : queries.shape[1]]
        place = positions(read)
        # Which rows are in the batch, and which of these have not ended.
        live = torch.arange(rows, device=queries.device)
        open_ = torch.ones(rows, dtype=torch.bool, device=queries.device)
        for t in range(width):
            output = body(
                input_ids=tokens,
                attention_mask=read,
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
            )
            last = output.last_hidden_state[:, -1]
            if t == 0 and len(last) < rows:
                cache.reorder_cache(copies)
                last, place = last[copies], place[copies]
            logits = head(last)
            chosen = inverse_cdf(logits, noise[:, t], self.temperature) if self.temperature else logits.argmax(1)
            responses[live, t] = torch.where(open_, chosen, self.pad_id)
            open_ = open_ & (chosen != self.eos_id)
            left = int(open_.sum())
            if not left:
                break
            tokens, place = chosen.unsqueeze(1), place[:, -1:] + 1
            if left <= KEEP * len(live):
                kept = open_.nonzero().squeeze(1)
                cache.reorder_cache(kept)
                tokens, place, mask, noise, live, open_ = (
                    tensor[kept] for tensor in (tokens, place, mask, noise, live, open_)
                )
            read = mask[:, : seen + t + 1]
        return responses


def distinct(queries: Tensor, query_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for prompts (B, P) with equal ones next to each other, the first of each, (B,) bool, and which of these
    every row equals, (B,) int64."""
    same = ((queries[1:] == queries[:-1]) & (query_mask[1:] == query_mask[:-1])).all(1)
    once = torch.cat([same.new_ones(1), ~same])
    return once, once.cumsum(0) - 1


def inverse_cdf(logits: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
    """Sample from softmax(logits / temperature) by one uniform number a row; logits (B, V), noise (B,), returns (B,)
    int64.

    Cumulative sums are in float64: summed in fp32, the tail of a vocabulary of 150,000 falls below the rounding and is
    never drawn.

    >>> inverse_cdf(torch.log(torch.tensor([[0.2, 0.5, 0.3]])), torch.tensor([0.65])).tolist()
    [1]
    """
    rows = max(1, (cpu.LOGITS if logits.device.type == "cpu" else CARD_LOGITS) // logits.shape[1])
    tokens = []
    for part, numbers in zip(torch.split(logits, rows), torch.split(noise.double().unsqueeze(1), rows), strict=True):
        p = torch.softmax(part if temperature == 1 else part / temperature, dim=-1)
        cumulative = p.cumsum(-1, dtype=torch.float64)
        # Scaled by the last entry, so that the rounding of the sum leaves no gap at the end; past it only where logits
        # are not finite.
        found = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
        tokens.append(found.squeeze(1).clamp(max=logits.shape[1] - 1))
    return torch.cat(tokens)


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
    """Completions as text, cut at their recorded lengths, special tokens left out: what they add to the text of their
    prompts.

    Not the text of the responses by themselves: some tokenizers drop the space before the first word of a text.
    """
    asked, answered = episodes.query_mask.sum(1).tolist(), episodes.lengths.tolist()
    prompts, wholes = list[list[int]](), list[list[int]]()
    for row, before, after in zip(episodes.query_responses.tolist(), asked, answered, strict=True):
        start, end = episodes.context_length - before, episodes.context_length + after
        prompts.append(row[start : episodes.context_length])
        wholes.append(row[start:end])
    openings, texts = (
        tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for rows in (prompts, wholes)
    )
    return [_added(opening, text) for opening, text in zip(openings, texts, strict=True)]


def _added(opening: str, text: str) -> str:
    """Return the rest of `text` after `opening`; a character that only both together make whole is the text's."""
    if text.startswith(opening):
        return text[len(opening) :]
    same = next(place for place in range(len(opening) + 1) if text[: place + 1] != opening[: place + 1])
    return text[same:]
