"""Frozen networks that wait in host memory while nobody asks them.

Their weights never change, so the copy in host memory is made once and is never written back: leaving the card frees,
and copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.models.out_of_memory import MemoryFull, is_out_of_memory

Move = Callable[[Tensor], Tensor]


def to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory, which the system is asked not to page out: the card then reads it at full speed. Where the
    system refuses, a plain copy."""
    copy = tensor.detach().to("cpu")
    try:
        return copy.pin_memory()
    except RuntimeError:
        return copy


class Offload:
    """Some frozen networks of a card. Their weights are off it from here on, but within `at_hand`.

    Modules, parameters and ties between them stay the objects they are: only where their numbers stand changes.
    """

    def __init__(self, networks: Iterable[Any], device: torch.device, home: Move = to_host) -> None:
        """A network named twice is moved once; what is no network of torch is passed over. Raises `ValueError` for
        weights that are trained."""
        modules = [network for network in networks if isinstance(network, nn.Module)]
        tensors = {id(one): one for module in modules for one in (*module.parameters(), *module.buffers())}
        if any(tensor.requires_grad for tensor in tensors.values()):
            raise ValueError("weights that are trained must stay on the card")
        self._device, self._inside = device, 0
        self._homes = [(tensor, home(tensor)) for tensor in tensors.values()]
        self._leave()

    @property
    def nbytes(self) -> int:
        """Of all weights that are moved."""
        return sum(waiting.nbytes for _, waiting in self._homes)

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """The networks are on the card within the block, which may stand in another one. Raises `MemoryFull` where they
        do not fit."""
        try:
            self._inside += 1
            if self._inside == 1:
                self._arrive()
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._leave()

    def _arrive(self) -> None:
        try:
            for tensor, waiting in self._homes:
                tensor.data = self._on_card(waiting)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            said = str(error).strip().splitlines()[0]
            raise MemoryFull(f"out of memory with the frozen networks back on the card: {said}") from None

    def _on_card(self, waiting: Tensor) -> Tensor:
        # From pinned memory the copy is in order with the kernels that read it, so nobody has to wait for it.
        return waiting.to(self._device, non_blocking=True)

    def _leave(self) -> None:
        for tensor, waiting in self._homes:
            tensor.data = waiting
