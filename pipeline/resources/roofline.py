"""A T4 as a roofline: counted work in seconds, max(FLOPs / peak, bytes / bandwidth), at stated efficiencies.

What a kernel costs to be launched is not in it: networks as small as those of the profile `tiny` are bound by that.
"""

from __future__ import annotations

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
