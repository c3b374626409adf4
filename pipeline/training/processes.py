"""One trial in several processes: each samples and measures its share of a rollout and back-propagates its share of a
mini-batch.

The shares are put together before anything is averaged: every process then holds the same rollout, the same gradient
and the same metrics, and takes the same step. So nothing is normalised twice, and the number of processes changes
results only by the order in which floats are added. Without a launcher there is one process, and nothing happens here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pipeline.resources.out_of_memory import MemoryFull, MemoryFullSomewhere

X = TypeVar("X")


@dataclass(frozen=True)
class Ranks:
    """The processes of a trial, seen from one of them."""

    state: Any
    """accelerate's `PartialState`: it knows the processes, and nothing of precision or of optimisers."""

    @classmethod
    def of(cls, device: torch.device) -> Ranks:
        """Join the processes that a launcher started for this trial; without a launcher there is this one alone."""
        from accelerate import PartialState

        return cls(PartialState(cpu=device.type == "cpu"))

    @property
    def count(self) -> int:
        return int(self.state.num_processes)

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return bool(self.state.is_main_process)

    def share(self, rows: Sequence[X]) -> slice:
        """This process's part of `rows`, the parts in the order of the processes. Their number divides by that of the
        processes."""
        size = len(rows) // self.count
        return slice(self.state.process_index * size, (self.state.process_index + 1) * size)

    def part(self, rows: Tensor) -> Tensor:
        """This process's part of a mini-batch's rows, every n-th; may be empty."""
        return rows[self.state.process_index :: self.count]

    def join(self, mine: Tensor) -> Tensor:
        """The shares of all processes along the first dimension, in order; all other dimensions are equal
        everywhere."""
        if self.count == 1:
            return mine
        from accelerate.utils import gather

        joined: Tensor = gather(mine.contiguous())
        return joined

    def join_lists(self, mine: Sequence[X]) -> list[X]:
        """The same for lists of anything."""
        if self.count == 1:
            return list(mine)
        from accelerate.utils import gather_object

        joined: list[X] = gather_object(list(mine))
        return joined

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in place."""
        if self.count > 1:
            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def all_fit(self, work: Callable[[], X]) -> X:
        """What `work` gives, which speaks to no other process. Raises `MemoryFull` in every process when one of them
        has no room for it."""
        if self.count == 1:
            return work()
        result, said = None, None
        try:
            result = work()
        except MemoryFull as error:
            said = str(error)
        full = torch.tensor(float(said is not None), device=self.state.device)
        self.add([full])
        if float(full):
            raise MemoryFullSomewhere(said or f"out of memory in {int(full)} of {self.count} processes")
        return cast(X, result)

    def agree(self, value: X) -> X:
        """What the main process says; clocks differ, and all must take the same turn."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        said: list[X] = broadcast_object_list([value])
        return said[0]

    def wait(self) -> None:
        """Until every process has come here."""
        if self.count > 1:
            self.state.wait_for_everyone()

    def end(self) -> None:
        """Leave the group together; a process that left before the others could end them with an error."""
        if self.count > 1:
            self.state.destroy_process_group()


class NullLog:
    """The metrics file of a process that does not write."""

    offset = 0

    def append(self, step: int, values: Mapping[str, float]) -> None: ...

    def flush(self, *, durable: bool = True) -> None: ...

    def close(self) -> None: ...
