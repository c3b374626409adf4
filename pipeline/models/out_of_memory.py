"""Number of rows in memory at once: halved when memory runs out, which changes results by rounding alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

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
            self._halve(rows, cause)

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

    def _halve(self, rows: int, cause: str) -> None:
        if rows == 1:
            raise MemoryFull(f"out of memory with a single row at once ({self.key} came down to 1): {cause}")
        self.rows = rows // 2
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        self._warn(f"out of memory with {self.key} = {rows}: from here on {self.rows}; results stay the same ({cause})")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocation failed, on a card or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in MESSAGES)
