"""Perplexity on held-out texts: what a policy still knows of the language that its reference was trained on."""

from __future__ import annotations

import math

import pandas as pd
import torch
from torch import Tensor

from pipeline.models import cpu
from pipeline.models.hidden_states import states
from pipeline.models.lm_head import head_logprobs
from pipeline.models.loading import CausalLM
from pipeline.models.precision import Precision
from pipeline.resources.out_of_memory import Room
from pipeline.run.store import Artifact
from pipeline.stages.sft import collate, encode

LARGEST = 50.0
"""Nats per token from which on perplexities are equal: a collapsed network gives a number that files and plots can
hold."""


def heldout_texts(prompts: Artifact, tokenizer: object, count: int, max_tokens: int) -> list[list[int]]:
    """The first `count` texts on which the reference was not trained, or all where there are fewer, as tokens like
    those of its training: cut to `max_tokens`, EOS at the end of the others."""
    texts = pd.read_parquet(prompts.path / "heldout_texts.parquet")["text"]
    return encode(tokenizer, texts.head(count), max_tokens)


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
        room.over(len(rows), fill, cpu.BUCKET if device.type == "cpu" else None)
    return found
