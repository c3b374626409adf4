"""Prompts: the openings of texts, distinct, the held-out ones never among the training ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from pipeline.data.settings import MOST_PROMPT_TOKENS, DataConfig
from pipeline.errors import UserError

CHARACTERS_A_TOKEN = 64
"""More than any token has: so much of a text is enough to find its first tokens."""

Cut = Callable[[str, int], str | None]
"""The first k units of a text, or None where nothing would be left to complete."""


def make_prompts(
    texts: Sequence[str], n: int, cfg: DataConfig, tokenizer: Any, rng: np.random.Generator, taken: frozenset[str]
) -> list[str]:
    """The first `n` distinct prompts of `texts` that are not in `taken`; all that there are, where there are fewer.

    A prompt is the first k words or tokens of a text, k uniform in ``prompt_length`` (both ends included). Texts
    that would leave nothing to complete and prompts of more than `MOST_PROMPT_TOKENS` are passed over. Raises
    `UserError` when the texts give none.
    """
    cut = cut_at(cfg.prompt_unit, tokenizer)
    low, high = cfg.prompt_length
    prompts: dict[str, None] = {}
    for text in texts:
        prompt = cut(text, int(rng.integers(low, high + 1)))
        if (
            prompt
            and prompt not in taken
            and prompt not in prompts
            and _tokens(tokenizer, prompt) <= MOST_PROMPT_TOKENS
        ):
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


def cut_at(unit: Literal["words", "tokens"], tokenizer: Any) -> Cut:
    """Return the function that cuts texts after so many units."""
    return first_words if unit == "words" else tokens_of(tokenizer)


def first_words(text: str, k: int) -> str | None:
    """The first k words.

    >>> first_words("one two three", 2), first_words("one two", 2)
    ('one two', None)
    """
    parts = text.split(" ", k)
    return " ".join(parts[:k]) if len(parts) > k else None


def tokens_of(tokenizer: Any) -> Cut:
    """Return a cut after k tokens, where the text up to there is k tokens by itself: never inside a character."""

    def cut(text: str, k: int) -> str | None:
        encoded = tokenizer(text[: CHARACTERS_A_TOKEN * (k + 1)], add_special_tokens=False, return_offsets_mapping=True)
        if len(encoded["input_ids"]) <= k:
            return None
        prompt = text[: encoded["offset_mapping"][k - 1][1]]
        return prompt if _tokens(tokenizer, prompt) == k else None

    return cut


def _tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
