"""Seconds, floating-point operations and memory of one contender, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pipeline.resources.machine import peak_gib

PHASES = ("generate", "score", "train", "log", "selfcheck", "rest")
CLOCKS = ("wall", "cpu")
PRODUCTS = 20


class Meter:
    """Time goes to the phase that is on top; entering another one stops the clock of the one below.

    The first update warms up, `measured` ones are timed, and one more is counted with the clock off, since counting
    costs time.
    """

    def __init__(self, device: torch.device, measured: int) -> None:
        self.device, self.measured = device, measured
        self.updates: list[dict[str, dict[str, float]]] = []
        """Of each update: seconds by clock (``wall``, and ``cpu`` of this process) and phase."""
        self.flops = dict.fromkeys(PHASES, 0.0)
        self.peak_bytes = 0
        self._counter: FlopCounterMode | None = None
        self._phase, self._counted = "rest", 0
        self._since, self._cpu_since = time.perf_counter(), time.process_time()
        self._current = _fresh()

    def switch(self, phase: str) -> None:
        """Count time and operations for `phase` from here on; one that is no column of the table belongs to the
        rest."""
        phase = phase if phase in PHASES else "rest"
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now, cpu = time.perf_counter(), time.process_time()
        self._current["wall"][self._phase] += now - self._since
        self._current["cpu"][self._phase] += cpu - self._cpu_since
        if self._counter is not None:
            total = self._counter.get_total_flops()
            self.flops[self._phase] += total - self._counted
            self._counted = total
        self._phase, self._since, self._cpu_since = phase, now, cpu

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """`switch` for the length of a block."""
        below = self._phase
        self.switch(phase)
        try:
            yield
        finally:
            self.switch(below)

    def end_update(self) -> None:
        """An update has ended."""
        self.switch("rest")
        self.updates.append(self._current)
        self._current = _fresh()
        if len(self.updates) == 1 + self.measured:
            self.peak_bytes = int(peak_gib(self.device.type == "cuda") * 2**30)
            self._counter = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
            self._counter.__enter__()
        elif self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counter = None

    def result(self) -> dict[str, Any]:
        """Seconds of each measured update, operations of one, and the high-water mark of memory before anything was
        counted."""
        updates = self.updates[1 : 1 + self.measured]
        return {"first": self.updates[0], "updates": updates, "flops": self.flops, "peak_bytes": self.peak_bytes}


def _fresh() -> dict[str, dict[str, float]]:
    return {clock: dict.fromkeys(PHASES, 0.0) for clock in CLOCKS}


def memory_now(device: torch.device) -> int:
    """Bytes held at this moment."""
    return int(torch.cuda.memory_allocated() if device.type == "cuda" else psutil.Process().memory_info().rss)


def matrix_peak(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """The fastest of some products of square matrices on this process's threads, by each clock; FLOP/s, or per CPU
    second."""
    size = 8192 if device.type == "cuda" else 1024
    a: Tensor = torch.randn(size, size, device=device, dtype=dtype)
    spent = []
    for _ in range(PRODUCTS):
        before = time.perf_counter(), time.process_time()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - before[0], time.process_time() - before[1]))
    return {clock: 2 * size**3 / min(column) for clock, column in zip(CLOCKS, zip(*spent, strict=True), strict=True)}


def _attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


_attention._get_raw = _attention_backward._get_raw = True  # type: ignore[attr-defined]
CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""torch counts the attention of a GPU and not that of a CPU."""
