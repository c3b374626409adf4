"""The key-value cache of sampling: written in place, and rows that have ended leave it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """One attention layer with room for `width` positions: a step writes its own position instead of copying all before it.

    `keys` and `values` (B, heads, positions so far, head size) are views of that room, so the library's own methods read it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._rooms: tuple[Tensor, ...] = ()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, heads, new positions, head size) and return all positions so far."""
        if not self._rooms:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self._rooms = tuple(new.new_empty(*new.shape[:2], self._width, new.shape[3]) for new in (key_states, value_states))
            self._show(0)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        for room, new in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self._show(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was. Only rows that change their place are copied."""
        end = self.get_seq_length()
        to = (beam_idx != torch.arange(len(beam_idx), device=beam_idx.device)).nonzero().squeeze(1)
        origin = beam_idx[to]
        for room in self._rooms:
            room[to, :, :end] = room[origin, :, :end]
        self._rooms = tuple(room[: len(beam_idx)] for room in self._rooms)
        self._show(end)

    def _show(self, end: int) -> None:
        self.keys, self.values = (room[:, :, :end] for room in self._rooms)


def roomy_cache(config: Any, width: int) -> DynamicCache:
    """A cache for `width` positions; layers of another kind (sliding windows, recurrent states) stay the library's own."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(width) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def close_ranks(kept: Tensor) -> Tensor:
    """An order of the kept rows in which few change their place: those behind fill the gaps in front.

    kept (B,) bool; returns row indices (n,), n the number of kept rows.

    >>> close_ranks(torch.tensor([True, False, True, True])).tolist()
    [0, 3, 2]
    """
    n = int(kept.sum())
    order = torch.arange(n, device=kept.device)
    order[~kept[:n]] = kept[n:].nonzero().squeeze(1) + n
    return order
