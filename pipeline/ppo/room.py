"""How many episodes are in memory at once: halved when memory runs out, which changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
CPU_WORDS = ("can't allocate memory", "not enough memory")
"""What torch says on a CPU, where it has no class of its own for it."""


class MemoryFull(Exception):
    """Not even a single episode fits into memory."""


class MemoryFullSomewhere(MemoryFull):
    """The same in any of several processes; raised in all of them together."""


def no_warning(message: str) -> None:
    """For who does not listen."""


class Room:
    """A number of episodes that shrinks as often as it must. Not part of a checkpoint: a resumed trial may have more memory."""

    def __init__(self, key: str, rows: int, warn: Callable[[str], None] = no_warning) -> None:
        """`key` is what sets it in the configuration, for the message."""
        self.key, self.rows, self._warn = key, rows, warn

    def fit(self, work: Callable[[int], T]) -> T:
        """`work` with as many rows as there is memory for; it is begun anew with half of them. Raises `MemoryFull`."""
        while True:
            try:
                return work(self.rows)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                said = str(error).strip().splitlines()[0]
            # Only here is the traceback gone, and with it what the failed attempt held.
            self._halve(said)

    def _halve(self, said: str) -> None:
        if self.rows == 1:
            raise MemoryFull(f"out of memory with a single episode at once ({self.key} came down to 1): {said}")
        before, self.rows = self.rows, self.rows // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._warn(f"out of memory with {self.key} = {before}: from here on {self.rows}; results stay the same ({said})")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on a card or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in CPU_WORDS)
