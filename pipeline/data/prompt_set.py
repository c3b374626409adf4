"""Prompts and texts as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.models.policy import Episodes, padded_episodes
from pipeline.models.sampling import tokenize_prompts
from pipeline.models.tokenizers import load_tokenizer
from pipeline.run.store import Artifact


@dataclass(frozen=True)
class PromptSet:
    """Prompts as text and as left-padded tokens on the CPU."""

    tokenizer: Any
    texts: list[str]
    ids: Tensor
    mask: Tensor

    @classmethod
    def load(cls, prompts: Artifact, name: str, first: int = 0, n: int | None = None) -> PromptSet:
        """`n` prompts of ``<name>.parquet`` from row `first` on; all of them by default."""
        texts = pd.read_parquet(prompts.path / f"{name}.parquet")["prompt"].tolist()[first:]
        return cls.of(load_tokenizer(prompts.path / "tokenizer"), texts[:n])

    @classmethod
    def of(cls, tokenizer: Any, texts: list[str]) -> PromptSet:
        return cls(tokenizer, texts, *tokenize_prompts(tokenizer, texts))

    @property
    def token_ids(self) -> dict[str, int]:
        """Numbers of the special tokens that sampling needs."""
        return {"eos_id": self.tokenizer.eos_token_id, "pad_id": self.tokenizer.pad_token_id}


def text_episodes(
    tokenizer: Any, prompts: Sequence[str], completions: Sequence[str], max_tokens: int, device: torch.device
) -> Episodes:
    """Prompts and completions as tokens, EOS at the end unless cut at `max_tokens` in all.

    An empty prompt takes the completion's first token; of a prompt that leaves no room only the end is kept, half
    of `max_tokens`.
    """
    queries, responses, end = list[list[int]](), list[list[int]](), int(tokenizer.eos_token_id)
    tokens = [tokenizer(list(texts), add_special_tokens=False)["input_ids"] for texts in (prompts, completions)]
    for query, text in zip(*tokens, strict=True):
        response = [*text, end]
        if not query:
            query, response = response[:1], response[1:]
        if len(query) >= max_tokens:
            query = query[-max(max_tokens // 2, 1) :]
        queries.append(query)
        responses.append(response[: max_tokens - len(query)])
    ended = torch.tensor([response[-1] == end for response in responses])
    episodes = padded_episodes(queries, responses, ended, int(tokenizer.pad_token_id))
    return episodes.each(lambda column: column.to(device))
