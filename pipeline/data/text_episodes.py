"""Texts as episodes, so that a reward model reads a human's text as it will read the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.models.policy import Episodes, padded_episodes


def text_episodes(
    tokenizer: Any, prompts: Sequence[str], completions: Sequence[str], max_tokens: int, device: torch.device
) -> Episodes:
    """Prompts and completions as tokens, EOS at the end unless cut at `max_tokens` in all.

    An empty prompt takes the completion's first token; of a prompt that leaves no room only the end is kept, half
    of `max_tokens`.
    """
    end = int(tokenizer.eos_token_id)
    queries, responses = (_rows(tokenizer, texts) for texts in (prompts, completions))
    rows = [_fit(query, [*response, end], max_tokens) for query, response in zip(queries, responses, strict=True)]
    ended = torch.tensor([response[-1] == end for _, response in rows])
    columns = [query for query, _ in rows], [response for _, response in rows]
    return padded_episodes(*columns, ended, int(tokenizer.pad_token_id)).each(lambda column: column.to(device))


def _rows(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    rows: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return rows


def _fit(query: list[int], response: list[int], most: int) -> tuple[list[int], list[int]]:
    if not query:
        query, response = response[:1], response[1:]
    if len(query) >= most:
        query = query[-max(most // 2, 1) :]
    return query, response[: most - len(query)]
