"""Rows in memory at once: bounds by the number of tokens, and halves when memory runs out, which changes results by
rounding alone. Stages work by these bounds, so they are part of their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

CHUNK_ELEMENTS, CHUNK_TOKENS, CARD_TOKENS = 2**22, 128, 512
"""A chunk at the language-modelling head: at most so many (tokens, vocabulary) entries, 16 MiB in fp32, but at least so
many tokens. Each chunk moves the whole head and its gradient once, 20 bytes a weight: with 128 tokens a T4 would be
busy with its memory for seven times as long as with its arithmetic, with 512 for three times. On a CPU, larger ones are
no faster: the allocator maps them afresh."""
CARD_POSITIONS, CPU_POSITIONS = 2**11, 2**13
"""Tokens of all answers of preference pairs or rankings whose activations are kept at once: on a card enough to be busy
with arithmetic."""

BUCKET = 16
"""Episodes that go through a network together on a CPU where no gradient is needed: so few that they stay in a core's
cache."""

T = TypeVar("T")
MESSAGES = ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of torch on a failed allocation where it has no class of its own for it: on a CPU, by the CUDA runtime, by
cuBLAS."""


class MemoryFull(Exception):
    """Not even a single row fits into memory, in this process or in another one of the trial."""


class Room:
    """A number of rows that shrinks as often as it must. Not part of a checkpoint: a resumed trial may have more
    memory."""

    def __init__(self, key: str, rows: int, warn: Callable[[str], None] = lambda message: None) -> None:
        """`key` is the configuration key that sets the number, for the message."""
        self.key, self.rows, self._warn = key, rows, warn

    def fit(self, work: Callable[[int], T], most: int | None = None) -> T:
        """`work` on as many rows as fit, at most `most`; begun again with half of them when memory runs out. Raises
        `MemoryFull`."""
        while True:
            rows = self.rows if most is None else min(self.rows, most)
            try:
                return work(rows)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                cause = str(error).strip().splitlines()[0]
            # Only here is the traceback gone, and with it what the failed attempt held.
            if rows == 1:
                raise MemoryFull(f"out of memory with a single row at once ({self.key} came down to 1): {cause}")
            self.rows = rows // 2
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
            self._warn(
                f"out of memory with {self.key} = {rows}: from here on {self.rows}; results stay the same ({cause})"
            )

    def over(self, n: int, work: Callable[[slice], T], most: int | None = None) -> list[T]:
        """`work` on consecutive slices of `n` rows, each as large as fits; slices that are done are not done again.
        Raises `MemoryFull`."""
        done, start = list[T](), 0
        while start < n:

            def part(rows: int, start: int = start) -> tuple[int, T]:
                return start + rows, work(slice(start, start + rows))

            start, result = self.fit(part, min(n - start, most or n))
            done.append(result)
        return done


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocation failed, on a card or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in MESSAGES)


def chunk_tokens(vocab: int, on_card: bool = False) -> int:
    """Tokens that go through the language-modelling head together."""
    return max(CHUNK_ELEMENTS // vocab, CARD_TOKENS if on_card else CHUNK_TOKENS)


def text_rows(rows: int, tokens: int, vocab: int, on_card: bool = False) -> int:
    """Texts of `tokens` tokens that a batch of `rows` goes through a language-modelling head by: no more logits than
    one chunk of PPO's."""
    return min(rows, max(chunk_tokens(vocab, on_card) // tokens, 1))


def ranking_rows(rows: int, ranked: int, tokens: int, on_card: bool = False) -> int:
    """Rankings of so many answers, of `tokens` tokens each, that a reward model is trained on at once; pairs are
    rankings of 2."""
    return min(rows, max((CARD_POSITIONS if on_card else CPU_POSITIONS) // (ranked * tokens), 1))


def bucket(device: torch.device, rows: int) -> int:
    """Return how many of these rows go through a network together: on a card all, on a CPU `BUCKET`, or twice as many
    where gradients are computed."""
    return min(rows, BUCKET * (1 + torch.is_grad_enabled())) if device.type == "cpu" else rows
