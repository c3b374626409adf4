"""Gradient steps outside of PPO, on the reference and on reward models: the precision, loss scaling and recomputation
are PPO's.

The loss is a sum over rows, already divided by what it is the mean of, so that micro-batches change no result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import Room
from pipeline.models.precision import GradientSteps, Precision
from pipeline.models.trunk import recomputing

MAX_GRAD_NORM = 1.0
ShareOfLoss = Callable[[slice], Tensor]
"""Function from some rows of a batch to their part of its loss."""


class Supervised:
    """An AdamW optimiser with everything that a card needs beside it."""

    def __init__(
        self, module: nn.Module, networks: Sequence[CausalLM], weight_decay: float, room: Room, checkpointing: bool
    ) -> None:
        """`networks` are the transformers in `module`; `room` holds the rows that are in memory at once."""
        self._module, self._networks, self._room, self._checkpointing = module, networks, room, checkpointing
        self._precision = Precision.of(next(module.parameters()).device)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.steps = GradientSteps(torch.optim.AdamW(trained, weight_decay=weight_decay, fused=True), self._precision)

    def step(self, lr: float, rows: int, share: ShareOfLoss) -> Tensor:
        """Take one step at `lr` on a batch of `rows`; returns its loss. Raises `MemoryFull` where a single row does not
        fit."""
        self.steps.optimiser.param_groups[0]["lr"] = lr
        loss: Tensor = self._room.fit(lambda size: self._gradient(rows, size, share))
        self.steps.clip([self._module.parameters()], MAX_GRAD_NORM)
        self.steps.step()
        return loss

    def close(self) -> None:
        """Give the gradients' memory back; that of the optimiser goes with this object."""
        self.steps.clear()

    def _gradient(self, rows: int, size: int, share: ShareOfLoss) -> Tensor:
        self.steps.clear()
        total = torch.zeros(())
        for start in range(0, rows, size):
            with recomputing(self._networks, self._checkpointing), self._precision.autocast():
                loss = share(slice(start, min(start + size, rows)))
            self.steps.scale(loss).backward()  # type: ignore[no-untyped-call]
            total = total.to(loss.device) + loss.detach()
        return total
