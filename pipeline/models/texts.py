"""Texts as token rows, and the perplexity of a network on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.heads import head_logprobs
from pipeline.models.out_of_memory import Room, bucket
from pipeline.models.precision import Precision
from pipeline.models.trunk import CausalLM, states

IGNORED = -100
"""Label of a token that counts in no loss."""
ENCODED = 256
"""Texts tokenised at a time: a tokenizer's output on a whole review takes many times the memory of the tokens that are
kept."""
LARGEST = 50.0
"""Nats per token from which on perplexities are equal: a collapsed network gives a number that files and plots can
hold."""


def encode(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Token rows with EOS at the end, unless the text was cut before it."""
    rows = list[list[int]]()
    for start in range(0, len(texts), ENCODED):
        encoded = tokenizer(texts[start : start + ENCODED], add_special_tokens=False)["input_ids"]
        rows += [[*row, tokenizer.eos_token_id][:max_tokens] for row in encoded]
    return rows


def collate(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids (B, L), attention mask (B, L) and labels (B, L), by lengths alone."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), mask.long().to(device), ids.masked_fill(~mask, IGNORED).to(device)


def perplexity(model: CausalLM, rows: list[list[int]], room: Room) -> float:
    """exp(sum of -log π / tokens) at temperature 1, over all tokens but the first of each text, as SFT measures it.

    A ratio of sums: long texts weigh more. Raises `MemoryFull`.
    """
    nats = float(text_nats(model, rows, room).sum())
    return math.exp(min(nats / sum(len(row) - 1 for row in rows), LARGEST))


@torch.inference_mode()
def text_nats(model: CausalLM, rows: list[list[int]], room: Room) -> Tensor:
    """-log π of each text's tokens after the first, summed; (n,) float64 on the CPU, nats. Raises `MemoryFull`."""
    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # so that little of a batch is padding
    found = torch.zeros(len(rows), dtype=torch.float64)

    def fill(part: slice) -> None:
        ids, mask, _ = collate([rows[index] for index in order[part]], device)
        row, column = mask[:, 1:].nonzero(as_tuple=True)
        hidden = states(model, ids[:, :-1], mask.sum(1) - 1, row, column)
        nats = -head_logprobs(model, hidden, ids[row, column + 1], 1.0).double()
        found[order[part]] = torch.zeros(len(ids), dtype=torch.float64).index_add(0, row.cpu(), nats.cpu())

    with Precision.of(device).autocast():
        room.over(len(rows), fill, bucket(device, len(rows)))
    return found
