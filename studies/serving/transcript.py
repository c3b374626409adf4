"""The text of a completion while it grows: where it stops, and what of it can be sent already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.models.policy import padded_episodes
from pipeline.models.sampling import decode

HALF = "\ufffd"
"""What half of a character is decoded to."""


Tokens = Sequence[Sequence[int]]


def texts_of(tokenizer: Any, prompts: Tokens, answers: Tokens, pad_id: int) -> list[str]:
    """What the answers' tokens add to the text of their prompts."""
    return decode(tokenizer, padded_episodes(prompts, answers, torch.zeros(len(prompts), dtype=torch.bool), pad_id))


def cut_at(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop begins in a text, or None.

    >>> cut_at("one. two.", ["two", "."]), cut_at("one", ["."])
    (3, None)
    """
    found = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return min(found, default=None)


def settled(text: str, stops: Sequence[str]) -> str:
    """What no further token can take back: neither half a character, nor an end that may become a stop.

    >>> settled("one tw", ["two"]), settled("one tx", ["two"]), settled("one", ["."])
    ('one ', 'one tx', 'one')
    """
    text = text.rstrip(HALF)
    held = max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )
    return text[: len(text) - held]
