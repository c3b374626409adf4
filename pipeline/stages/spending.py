"""What a stage takes of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.errors import UserError
from pipeline.resources.machine import fresh_marks, peak_gib
from pipeline.resources.out_of_memory import MemoryFull
from pipeline.run.layout import write_json


@contextmanager
def spending(
    out: Path, device: torch.device, work: Callable[[], Mapping[str, float]] = dict[str, float]
) -> Iterator[None]:
    """Write what a stage took of the machine to ``log/cost.json``, which is no part of what it is; refuse in words what
    does not fit. `work` gives what else the stage has counted."""
    on_card = device.type == "cuda"
    fresh_marks(on_card)
    began = time.perf_counter()
    try:
        yield
    except MemoryFull as error:
        raise UserError(str(error)) from None
    spent = {"wall_s": time.perf_counter() - began, "peak_memory_gib": peak_gib(on_card)}
    write_json(out / "log" / "cost.json", {**work(), **spent})
