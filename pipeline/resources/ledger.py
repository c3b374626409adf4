"""Spending of a trial by phase, the caps that end it, and a T4 as a roofline: counted work in seconds,
max(FLOPs / peak, bytes / bandwidth), at stated efficiencies.

What a kernel costs to be launched is not in it: networks as small as those of the profile `tiny` are bound by that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Any

from pipeline.config.trial import CapsConfig, TrialConfig
from pipeline.resources.machine import GIB, peak_gib

T4_FLOPS = 65e12
"""fp16 peak of a T4, FLOP/s (vendor's datasheet)."""
T4_BYTES = 320e9
"""Memory bandwidth of a T4, bytes/s (same)."""
T4_FP32_FLOPS = 8.1e12
"""fp32 peak, FLOP/s (same)."""
EFFICIENCY = {"generate": 0.5, "score": 0.35, "selfcheck": 0.35, "natural step": 0.35, "train": 0.35, "reward": 0.35}
"""Fraction of the roofline assumed for each phase; assumed, not measured on a T4. `reward`: the rewards of
later rounds, each made for one trial alone."""

BYTES_READ_HALF = 2
"""Per parameter whose half-precision copy is kept: trained weights while a rollout is sampled and measured, a trained
head always."""
BYTES_READ_CAST = 8
"""Per parameter that autocast casts at every call: read in fp32, written and read in half precision. Frozen weights,
and every forward of a training step but that of a trained head."""
BYTES_BACKWARD = 2
"""Per parameter: the half-precision copy again, for the gradient of the input."""
BYTES_GRADIENT = 12
"""Per trained parameter and backward: a gradient written in half precision, read, and added to the fp32 one."""
BYTES_HEAD_GRADIENT = 16
"""The same for the language-modelling head, whose gradient is written in fp32."""
BYTES_STEP = 40
"""Per trained parameter and optimiser step: norm and scale of the gradient (12), then Adam (28)."""
BYTES_CACHE = 11
"""Per cached number and sampled token: all is copied to make room for one position more, keys are fp32 and cast, values
half precision."""
BYTES_LOGIT = 28
"""Per logit of a forward: written in fp32, then log-softmax and what is summed of it; twice that with its backward."""


def t4_seconds(phase: str, flops: float, bytes_: float) -> float:
    """The slower of arithmetic and memory, at the phase's assumed efficiency."""
    return max(flops / T4_FLOPS, bytes_ / T4_BYTES) / EFFICIENCY[phase]


KEPT = "checkpoints"
"""Folder of a trial's checkpoints, and of the metrics of one that a cap has ended."""


@dataclass
class Ledger:
    """Time, work and memory of one trial; saved in checkpoints, so that a resumed trial goes on counting.

    `on_card`: memory is that of the CUDA allocator.
    """

    on_card: InitVar[bool] = False
    seconds: dict[str, float] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    generated_tokens: int = 0
    peak_gib: float = 0.0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    wall_before: float = 0.0
    """Seconds spent before this process took the trial up."""

    def __post_init__(self, on_card: bool) -> None:
        self._on_card = on_card
        self._began = time.perf_counter()
        self._phase: str | None = None

    @property
    def wall_s(self) -> float:
        """All seconds of the trial, also those between its phases."""
        return self.wall_before + time.perf_counter() - self._began

    def state(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**kept, "wall_before": self.wall_s}

    def load(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._began = time.perf_counter()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall-clock time of a block, and all work counted in it, to a phase."""
        outer, self._phase = self._phase, phase
        start = time.perf_counter()
        try:
            yield
        finally:
            self._phase = outer
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def work(self, flops: float, bytes_: float) -> None:
        """Add work to the phase at hand; outside of the phases of a roofline nothing is counted."""
        if self._phase in EFFICIENCY:
            self.flops[self._phase] = self.flops.get(self._phase, 0.0) + flops
            self.bytes[self._phase] = self.bytes.get(self._phase, 0.0) + bytes_

    def cost(self) -> dict[str, float]:
        """Everything spent, flat, for records."""
        return {
            "wall_s": self.wall_s,
            **{f"{phase}_s": seconds for phase, seconds in self.seconds.items()},
            "generated_tokens": float(self.generated_tokens),
            "checkpoints": float(self.checkpoints),
            "checkpoint_gib": self.checkpoint_bytes / GIB,
            "peak_memory_gib": self.peak_gib,
            "tflop": sum(self.flops.values()) / 1e12,
            **{f"{phase}_tflop": flops / 1e12 for phase, flops in self.flops.items()},
            "t4_s": sum(t4_seconds(phase, self.flops[phase], self.bytes[phase]) for phase in self.flops),
        }

    def mark(self) -> float:
        """Take down the high-water mark of memory, and return that of this process: a resumed trial may need less than
        it did before."""
        peak = peak_gib(self._on_card)
        self.peak_gib = max(self.peak_gib, peak)
        return peak

    def exceeded(self, caps: CapsConfig) -> dict[str, Any] | None:
        """The cap that has been reached, or None: its `key`, what was `spent` of it, and both in `words`."""
        memory, hours, tokens = self.mark(), self.wall_s / 3600, self.generated_tokens
        for key, spent, words in (
            ("wall_clock_h", hours, f"wall clock {hours:.2f} h"),
            ("generated_tokens", tokens, f"{tokens} generated tokens"),
            ("memory_gib", memory, f"peak memory {memory:.2f} GiB"),
        ):
            if spent >= (limit := getattr(caps, key)):
                return {"key": key, "spent": spent, "words": f"{words} reached caps.{key} = {limit:.10g}"}
        return None


def added(spent: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The states of two ledgers as one: what was spent by either, and the larger of their peaks of memory.

    >>> one, other = Ledger(seconds={"train": 1.0}, peak_gib=2.0), Ledger(seconds={"reward": 3.0}, peak_gib=1.0)
    >>> both = added(vars(one), vars(other))
    >>> both["seconds"], both["peak_gib"]
    ({'train': 1.0, 'reward': 3.0}, 2.0)
    """
    result = {}
    for name, value in spent.items():
        if isinstance(value, Mapping):
            other = more[name]
            result[name] = {phase: value.get(phase, 0.0) + other.get(phase, 0.0) for phase in {**value, **other}}
        elif name == "peak_gib":
            result[name] = max(value, more[name])
        elif not name.startswith("_"):
            result[name] = value + more[name]
    return result


def raised_cap(config: TrialConfig, meta: Mapping[str, Any]) -> str | None:
    """Return why a trial that a cap has ended goes on under this configuration, which has a larger cap, or None. `meta`
    is that of its artifact."""
    cap = meta.get("cap")
    if cap is None or (limit := getattr(config.caps, cap["key"])) <= cap["spent"]:
        return None
    return f"caps.{cap['key']} is {limit:g} now: continues from step {cap['step']}"
