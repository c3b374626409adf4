"""Where the tokens of some episodes stand, worked out on the host from lengths that it knows.

A card is then never waited for: every size and every index of a micro-batch is known before it begins. B rows of P
prompt and T response columns; of a micro-batch b rows, N valid response tokens and M tokens that a trunk reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through a network together. Tensors are int64, on the device of the episodes."""

    rows: Tensor
    """(b,) which of the B rows."""
    row: Tensor
    """(N,) the micro-batch's row of each valid response token, ascending."""
    tokens: Tensor
    """(N,) its cell among the response columns that the micro-batch needs, counted row by row."""
    whole: Tensor
    """(N,) its cell among all B x T."""
    cells: Tensor
    """(M,) cells of what a trunk reads, as of `Packing.cells`."""
    read: Tensor
    """(N,) which of the M predict the response tokens, as of `Packing.read`."""
    first: int
    """The first prompt column that is not padding in all rows."""
    width: int
    """Response columns that are not padding in all rows."""
    longest: int
    """Tokens of the longest prompt and response together."""


@dataclass(frozen=True)
class Extents:
    """How long all prompts and responses are, on the host."""

    prompts: Numbers
    """(B,) tokens of each prompt, at the end of P columns."""
    responses: Numbers
    """(B,) tokens of each response, at the beginning of T columns."""
    context: int
    """P."""
    steps: int
    """T."""

    @classmethod
    def of(cls, query_mask: Tensor, response_mask: Tensor) -> Extents:
        """From the masks (B, P) and (B, T); waits for the device once."""
        prompts, responses = torch.stack([query_mask.sum(1), response_mask.sum(1)]).cpu().numpy()
        return cls(prompts, responses, query_mask.shape[1], response_mask.shape[1])

    def micro_batches(self, size: int, rows: Tensor, device: torch.device) -> Iterator[MicroBatch]:
        """The rows (n,), a tensor on the host, `size` at a time, sorted by length so that little of each is padding.
        Each is made when it is asked for: the indices of all would take as much as what was measured of them."""
        chosen = rows.numpy()
        order = chosen[(self.prompts + self.responses)[chosen].argsort(kind="stable")]
        return (self._micro_batch(order[start : start + size], device) for start in range(0, len(order), size))

    def _micro_batch(self, rows: Numbers, device: torch.device) -> MicroBatch:
        prompts, responses = self.prompts[rows], self.responses[rows]
        row, step = _laid_out(responses)
        width, longest = max(int(responses.max()), 1), int((prompts + responses).max())
        # The last token of a row predicts nothing that anybody reads.
        place, column = _laid_out(prompts + responses - 1)
        before = (prompts + responses - 1).cumsum() - (prompts + responses - 1)
        parts = (
            rows,
            row,
            row * width + step,
            rows[row] * self.steps + step,
            place * (longest - 1) + column,
            before[row] + prompts[row] - 1 + step,
        )
        first = self.context - max(int(prompts.max()), 1)
        there, owner, tokens, whole, cells, read = moved(parts, device)
        return MicroBatch(there, owner, tokens, whole, cells, read, first, width, longest)


def _laid_out(lengths: Numbers) -> tuple[Numbers, Numbers]:
    """Row and place of every token of rows laid end to end."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - np.repeat(lengths.cumsum() - lengths, lengths)


def moved(parts: tuple[Numbers, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Numbers of the host as tensors of a device, without waiting for it."""
    whole = torch.from_numpy(np.concatenate(parts))
    if device.type == "cuda":
        whole = whole.pin_memory().to(device, non_blocking=True)
    return torch.split(whole, [len(part) for part in parts])


def picked(grid: Tensor, mask: Tensor, micro_batch: MicroBatch | None = None) -> Tensor:
    """The entries of a grid (b, T) at the valid tokens of its mask, (N,); those of a `micro_batch` without asking the
    device."""
    return grid[mask] if micro_batch is None else grid.reshape(-1)[micro_batch.tokens]
