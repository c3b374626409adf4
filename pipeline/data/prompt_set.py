"""Prompts as a stage reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

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
        tokenizer = load_tokenizer(prompts.path / "tokenizer")
        texts = pd.read_parquet(prompts.path / f"{name}.parquet")["prompt"].tolist()[
            first : None if n is None else first + n
        ]
        return cls.of(tokenizer, texts)

    @classmethod
    def of(cls, tokenizer: Any, texts: list[str]) -> PromptSet:
        return cls(tokenizer, texts, *tokenize_prompts(tokenizer, texts))

    @property
    def token_ids(self) -> dict[str, int]:
        """What sampling needs to know."""
        return {"eos_id": self.tokenizer.eos_token_id, "pad_id": self.tokenizer.pad_token_id}
