"""Everything that a captured decode step reads and writes, at addresses that do not change.

transformers' `StaticCache` has a counter in every layer, and rolls layers with a window by a Python number, which a
graph would freeze. Here all layers share one column on the device, and every bucket of rows and columns is a view of
one and the same memory: a smaller bucket costs none. R rows, C columns, T steps, h heads of width d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer


class Window(StaticLayer):  # type: ignore[misc]
    """The first rows and columns of a layer's keys and values, as transformers asks for a layer."""

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        """keys and values (R, h, C, d); column (1,) int64: where the next token goes."""
        super().__init__(keys.shape[2])
        self.keys, self.values, self.column = keys, values, column
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write those of one token; all columns are returned, and the mask leaves out what is not there yet."""
        # Autocast leaves keys in fp32 behind the rotation, and rounds them in the product: the same, but for the bytes.
        self.keys.index_copy_(2, self.column, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.column, value_states.to(self.values.dtype))
        return self.keys, self.values

    def get_seq_length(self) -> Tensor:
        """Columns that are filled, on the device."""
        return self.column


class Slots:
    """The rows that are being sampled. Made once for the largest call; a call uses the first rows and columns."""

    def __init__(
        self, rows: int, steps: int, columns: int, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype
    ) -> None:
        """`layers`: keys and values (any, h, any, d) of a forward, for their sizes; the cache is of `dtype`."""
        device = layers[0][0].device
        self.rows, self.steps, self.columns = rows, steps, columns

        def cache(like: Tensor) -> Tensor:
            return torch.zeros(rows, like.shape[1], columns, like.shape[3], dtype=dtype, device=device)

        def numbers(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.layers = [(cache(keys), cache(values)) for keys, values in layers]
        self.column, self.step = numbers(1), numbers(1)
        # By slot, the first so many of which are in the batch.
        self.tokens, self.place, self.live = numbers(rows, 1), numbers(rows, 1), numbers(rows)
        self.seen, self.open = numbers(rows, columns, dtype=torch.bool), numbers(rows, dtype=torch.bool)
        # By row of the call.
        self.noise, self.responses = numbers(rows, steps, dtype=torch.float64), numbers(rows, steps)
        self.logprobs, self.lengths = numbers(rows, steps, dtype=torch.float32), numbers(rows)
        self._buckets: dict[tuple[int, int], Cache] = {}

    def holds(self, rows: int, steps: int, columns: int) -> bool:
        """Whether a call of this size has room."""
        return rows <= self.rows and steps <= self.steps and columns <= self.columns

    def begin(
        self,
        read: Sequence[tuple[Tensor, Tensor]],
        copies: Tensor,
        mask: Tensor,
        places: Tensor,
        noise: Tensor,
        pad_id: int,
    ) -> None:
        """Take up B rows whose prompts have been read: keys and values (n, h, P, d) of each layer, of which row b has
        those of prompt `copies[b]`, mask (B, P) bool, the last position of each prompt (B, 1), noise (B, T)."""
        rows, context = mask.shape
        for (keys, values), (read_keys, read_values) in zip(self.layers, read, strict=True):
            for own, prompts in ((keys, read_keys), (values, read_values)):
                # A product with a masked number is 0 only where that number is finite.
                own.zero_()
                own[:rows, :, :context] = prompts.to(own.dtype)[copies]
        self.column.fill_(context)
        self.step.zero_()
        self.place[:rows] = places
        self.live[:rows] = torch.arange(rows, device=self.live.device)
        self.seen.fill_(False)
        self.seen[:rows, :context] = mask
        self.open[:rows] = True
        self.noise[:rows, : noise.shape[1]] = noise
        self.responses.fill_(pad_id)
        self.logprobs.zero_()
        self.lengths.zero_()

    def bucket(self, rows: int, columns: int) -> Cache:
        """The cache of the first rows and columns."""
        if (rows, columns) not in self._buckets:
            views = [(keys[:rows, :, :columns], values[:rows, :, :columns]) for keys, values in self.layers]
            self._buckets[rows, columns] = Cache(layers=[Window(keys, values, self.column) for keys, values in views])
        return self._buckets[rows, columns]

    def compact(self, rows: int, fewer: int, used: int) -> None:
        """Leave `fewer` of the first rows in the batch: those that have not ended, and as many others as there is room
        for. `used` columns are filled."""
        kept = (~self.open[:rows]).byte().argsort(stable=True)[:fewer]
        for layer in self.layers:
            for one in layer:
                one[:fewer, :, :used] = one[:rows, :, :used].index_select(0, kept)
        for one in (self.tokens, self.place, self.live, self.seen, self.open):
            one[:fewer] = one[:rows].index_select(0, kept)

    @property
    def nbytes(self) -> int:
        """Memory of the cache."""
        return sum(one.nbytes for layer in self.layers for one in layer)
