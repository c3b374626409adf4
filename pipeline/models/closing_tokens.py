"""Which tokens of a vocabulary end a clause or a sentence, by their texts."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

CLOSERS: dict[str, tuple[str, ...]] = {"clause": tuple(",;:.!?"), "sentence": tuple(".!?")}
"""What the text of such a token ends in, but for space, and quotes and brackets that close. A new line anywhere in a
token ends both."""
AFTER = "\"'”’»)]"
"""May stand behind the closer."""


def closing_tokens(
    tokenizer: Any, group: Literal["token", "clause", "sentence", "sequence"], vocabulary: int
) -> Tensor | None:
    """(vocabulary,) bool, True for tokens that end a group; None where no text decides what a group is.

    Special tokens, and places of the vocabulary without a token, end none.
    """
    if group not in CLOSERS:
        return None
    closes = torch.zeros(vocabulary, dtype=torch.bool)
    for token in tokenizer.get_vocab().values():
        text = tokenizer.decode([token], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        closes[token] = "\n" in text or text.strip().rstrip(AFTER).endswith(CLOSERS[group])
    return closes
