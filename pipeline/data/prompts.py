"""Prompts: the first few words of texts, distinct, the held-out ones never among the training ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.errors import UserError


def make_prompts(
    texts: Sequence[str], n: int, words: tuple[int, int], rng: np.random.Generator, taken: frozenset[str] = frozenset()
) -> list[str]:
    """The first `n` distinct prompts of `texts` that are not in `taken`.

    A prompt is the first k words of a text, k uniform in `words` (both ends included); texts that would
    leave nothing to complete are passed over. Raises `UserError` when the texts give fewer than `n`.
    """
    found: dict[str, None] = {}
    for prompt in _candidates(texts, words, rng):
        if prompt not in taken:
            found[prompt] = None
            if len(found) == n:
                return list(found)
    raise UserError(
        f"data: {len(texts)} texts give only {len(found)} distinct prompts of {words[0]} to {words[1]} words, {n} are asked for; "
        f"lower data.train_prompts or data.heldout_prompts, or widen data.prompt_words"
    )


def _candidates(texts: Sequence[str], words: tuple[int, int], rng: np.random.Generator) -> Iterator[str]:
    for text in texts:
        k = int(rng.integers(words[0], words[1] + 1))
        parts = text.split(" ")
        if len(parts) > k:
            yield " ".join(parts[:k])
