"""What the epochs of an update learn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from pipeline.algorithms.terms import Tokens
from pipeline.models.micro_batches import Extents, MicroBatch
from pipeline.models.policy import Episodes
from pipeline.training.judging import Measured


@dataclass(frozen=True)
class Experience:
    """Episodes with everything the losses need; grids are (B, T), 0 on invalid tokens."""

    episodes: Episodes
    measured: Measured
    advantages: Tensor
    returns: Tensor | None
    """Of the critic's loss; None without a critic."""
    kl_coef: float
    """beta in force."""

    @cached_property
    def extents(self) -> Extents:
        """Of the episodes; the device is asked once."""
        return Extents.of(self.episodes.query_mask, self.episodes.response_mask)

    def micro_batches(self, size: int, rows: Tensor) -> Iterator[MicroBatch]:
        """The rows (n,), on the host, `size` at a time, sorted by length."""
        return self.extents.micro_batches(size, rows, self.episodes.ended.device)


def tokens_of(experience: Experience, rows: Tensor | MicroBatch) -> Tokens:
    """The valid tokens of some rows: (B,) indices, or a micro-batch."""
    measured, mask = experience.measured, experience.episodes.response_mask

    def valid(grid: Tensor) -> Tensor:
        return grid.reshape(-1)[rows.whole] if isinstance(rows, MicroBatch) else grid[rows][mask[rows]]

    return Tokens(
        valid(measured.logprobs),
        valid(measured.ref_logprobs),
        valid(experience.advantages),
        None if measured.values is None else valid(measured.values),
        None if experience.returns is None else valid(experience.returns),
    )
