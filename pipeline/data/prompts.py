"""Prompts: distinct openings of texts, the held-out ones never among the training ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pipeline.data.settings import MOST_PROMPT_TOKENS, DataConfig
from pipeline.errors import UserError

CHARACTERS_A_TOKEN = 64
"""More than any token has: so much of a text is enough to find its first tokens."""
Unit = Literal["words", "tokens"]


def make_prompts(
    texts: Sequence[str], n: int, cfg: DataConfig, tokenizer: Any, rng: np.random.Generator, taken: frozenset[str]
) -> list[str]:
    """The first `n` distinct prompts of `texts` that are not in `taken`; all that there are, where there are fewer.

    A prompt is the first k words or tokens of a text, k uniform in ``prompt_length`` (both ends included). Texts
    that would leave nothing to complete and prompts of more than `MOST_PROMPT_TOKENS` are passed over. Raises
    `UserError` when the texts give none.
    """
    low, high = cfg.prompt_length
    prompts: dict[str, None] = {}
    for text in texts:
        prompt = opening(text, int(rng.integers(low, high + 1)), cfg.prompt_unit, tokenizer)
        new = prompt and prompt not in taken and prompt not in prompts
        if prompt and new and len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) <= MOST_PROMPT_TOKENS:
            prompts[prompt] = None
            if len(prompts) == n:
                return list(prompts)
    if not prompts:
        raise UserError(
            f"data: none of {len(texts)} texts gives a new prompt of {low} to {high} {cfg.prompt_unit} (at most"
            f" {MOST_PROMPT_TOKENS} tokens) and a rest to complete; use more or longer texts, or change"
            " data.prompt_length"
        )
    return list(prompts)


def opening(text: str, k: int, unit: Unit, tokenizer: Any) -> str | None:
    """The first k words or tokens of a text; None where nothing would be left to complete, and where the text up to the
    cut is not k tokens by itself: a cut is never inside a character.

    >>> opening("one two three", 2, "words", None), opening("one two", 2, "words", None)
    ('one two', None)
    """
    if unit == "words":
        parts = text.split(" ", k)
        return " ".join(parts[:k]) if len(parts) > k else None
    encoded = tokenizer(text[: CHARACTERS_A_TOKEN * (k + 1)], add_special_tokens=False, return_offsets_mapping=True)
    if len(encoded["input_ids"]) <= k:
        return None
    prompt = text[: encoded["offset_mapping"][k - 1][1]]
    return prompt if len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) == k else None
