"""A process that computes: its settings, the devices that it needs, and what it takes of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.config.trial import RuntimeConfig
from pipeline.errors import UserError
from pipeline.models.loading import device_of
from pipeline.models.out_of_memory import MemoryFull, Room
from pipeline.resources.ledger import Ledger
from pipeline.resources.machine import fresh_marks, grow_segments, peak_gib
from pipeline.run.layout import write_json


def check_devices(runtime: RuntimeConfig) -> torch.device:
    """The device of a trial. Raises `UserError` where CUDA has no GPU, or fewer than `runtime.processes`."""
    device = device_of(runtime.device)
    if device.type == "cuda" and runtime.processes > torch.cuda.device_count():
        raise UserError(
            f"runtime.processes = {runtime.processes}: each process needs a GPU of its own, {torch.cuda.device_count()}"
            f" visible; at most {torch.cuda.device_count()}"
        )
    return device


def settle(runtime: RuntimeConfig) -> None:
    """Settings of the process that a trial relies on; harmless to repeat."""
    grow_segments()
    torch.set_num_threads(runtime.threads)
    quiet_libraries()


def quiet_libraries() -> None:
    """Keep transformers from writing to the terminal."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@dataclass(frozen=True)
class Bench:
    """The device of a stage, and the resources that it takes."""

    device: torch.device
    room: Room
    """Rows that are sampled, measured or scored at once."""
    ledger: Ledger


@contextmanager
def bench(runtime: RuntimeConfig, out: Path, warn: Callable[[str], None], charged: bool = True) -> Iterator[Bench]:
    """Write what a stage took of the machine to ``log/cost.json``, which is no part of what it is; refuse in words what
    does not fit. `charged`: with what its ledger has counted."""
    device = device_of(runtime.device)
    on_card = device.type == "cuda"
    ledger = Ledger(on_card)
    fresh_marks(on_card)
    began = time.perf_counter()
    try:
        yield Bench(device, Room("runtime.rollout_batch_size", runtime.rollout_batch_size, warn), ledger)
    except MemoryFull as error:
        raise UserError(str(error)) from None
    spent = {"wall_s": time.perf_counter() - began, "peak_memory_gib": peak_gib(on_card)}
    write_json(out / "log" / "cost.json", {**(ledger.cost() if charged else {}), **spent})
