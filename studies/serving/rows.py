"""One completion while it is drawn, and the request that it belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from studies.serving.asking import Request
from studies.serving.refusal import Refusal
from studies.serving.revision import Revision
from studies.serving.transcript import HALF, settled


@dataclass(eq=False)
class Row:
    """One completion."""

    index: int
    """Of the choice in its answer."""
    prompt: str
    query: Sequence[int]
    noise: Tensor
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The text after each token, where somebody reads along."""
    cut: int | None = None
    """Where a stop begins in the text."""
    finish: str | None = None
    """None while it is drawn; ``stop``, ``length``, or ``cancelled``."""
    sent: int = 0
    """Characters that the client has."""
    told: int = 0
    """Tokens whose log-probs the client has."""

    def text(self, stops: Sequence[str] = ()) -> str:
        """What the client may have by now."""
        whole = self.texts[-1] if self.texts else ""
        return settled(whole, stops) if self.finish is None else whole[: self.cut]

    def fresh(self, stops: Sequence[str]) -> tuple[str, range]:
        """Text that is new to the client, and the tokens that it comes from; notes them as sent."""
        text = self.text(stops)
        added, first = text[self.sent :], self.told
        self.sent = max(self.sent, len(text))
        if self.finish is not None and self.cut is None:
            self.told = len(self.tokens)
        else:
            # Of a text that was cut, the token with the cut in it is the last one.
            known = [
                self._end(i) <= len(text) or (self.finish is not None and self._start(i) < len(text))
                for i in range(first, len(self.tokens))
            ]
            self.told = first + (known.index(False) if False in known else len(known))
        return added, range(first, self.told)

    def _end(self, token: int) -> int:
        text = self.texts[token]
        last = self.finish is not None and token == len(self.texts) - 1  # what half a character it leaves stays
        return len(text if last else text.rstrip(HALF))

    def _start(self, token: int) -> int:
        return self._end(token - 1) if token else 0

    def explained(self, tokens: range, text_of: Callable[[int], str]) -> dict[str, Any]:
        """OpenAI's ``logprobs`` of some of its tokens; the log-probs are those of softmax(logits) at temperature 1."""
        return {
            "tokens": [self.texts[i][self._start(i) : self._end(i)] for i in tokens],
            "token_logprobs": [self.logprobs[i] for i in tokens],
            "top_logprobs": [_by_text(self.tops[i], text_of) for i in tokens] if any(self.tops) else None,
            "text_offset": [self._start(i) for i in tokens],
        }


def _by_text(top: Sequence[tuple[int, float]], text_of: Callable[[int], str]) -> dict[str, float]:
    """Tokens by their texts, the likeliest first; of those with one text, as halves of characters, the likeliest."""
    found = dict[str, float]()
    for token, value in top:
        found.setdefault(text_of(token), value)
    return found


@dataclass(frozen=True)
class Delta:
    """What is new of a completion that is streamed."""

    choice: dict[str, Any]


Emit = Callable[[Any], None]
"""Hands an event to whoever waits: a `Delta`, the `Job` itself when all is done, or a `Refusal`."""


@dataclass(eq=False)
class Job:
    """One request, from its arrival to its answer."""

    request: Request
    rows: list[Row]
    seed: int
    emit: Emit
    arrived: float = field(default_factory=time.monotonic)
    revision: Revision | None = None
    """Of the networks that answer, once they do."""
    choices: list[dict[str, Any]] = field(default_factory=list)
    """The answer, of a request that is not streamed."""
    measured: list[dict[str, Any]] | None = None
    """Of each row, where it was asked for."""
    cancelled: bool = False
    """Its client has gone away."""
    answered: bool = False

    @property
    def watched(self) -> bool:
        """Whether somebody reads the text while it grows."""
        return self.request.stream or bool(self.request.stop) or self.request.logprobs is not None

    @property
    def ended(self) -> bool:
        return all(row.finish is not None for row in self.rows)

    def refuse(self, refusal: Refusal) -> None:
        """End it without an answer."""
        if not self.answered:
            self.answered = True
            self.emit(refusal)
