"""Which sampler draws a trial's rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pipeline.models.anatomy import CausalLM
from pipeline.models.packing import ARCHITECTURES, PACKED
from pipeline.models.precision import ATTENTION, Precision
from pipeline.models.sampler import EagerSampler, Sampler
from pipeline.resources.out_of_memory import Room

Choice = Literal["auto", "eager", "static"]
STEADY = ("default", "linear", "llama3", "yarn")
"""Rotations of positions whose frequencies do not depend on how long the rows are."""


def choose_sampler(
    choice: Choice,
    lm: CausalLM,
    longest: int,
    *,
    temperature: float,
    room: Room,
    eos_id: int,
    pad_id: int,
    precision: Precision,
    tally: Callable[[float, float], None],
    warn: Callable[[str], None],
) -> Sampler:
    """The sampler of a policy for rows of at most `longest` tokens. One line to `warn` where `choice` asks for the
    static sampler, or the device for it, and the network allows only the eager one."""
    eager = EagerSampler(lm, temperature, room, eos_id, pad_id)
    if choice == "eager" or (choice == "auto" and precision.device.type != "cuda"):
        return eager
    if why := obstacle(lm, longest):
        warn(f"rollouts are sampled by the eager sampler, which is slower: {why}")
        return eager
    # It imports the cache of transformers, which a trial on a CPU does without.
    from pipeline.models.static_sampler import StaticSampler

    return StaticSampler(lm, temperature, room, eos_id, pad_id, precision, tally, warn)


def obstacle(lm: CausalLM, longest: int) -> str | None:
    """Why the static sampler cannot sample from a network; None where it can."""
    config, name = lm.config, type(lm).__name__
    if config.model_type not in ARCHITECTURES:
        return f"it is not known whether a {name} passes a mask of its own down to its attention"
    if not getattr(lm, "_can_compile_fullgraph", False):
        return f"transformers does not declare that a step of a {name} can be captured"
    if config._attn_implementation not in (PACKED, ATTENTION):
        return f"attention '{config._attn_implementation}' is not {ATTENTION}"
    window = getattr(config, "sliding_window", None)
    if window is not None and window < longest:
        return f"a token sees {window} tokens, and rows have up to {longest}"
    if kinds := rotations(config) - set(STEADY):
        return f"its rotation of positions ({', '.join(sorted(kinds))}) depends on the length of a row"
    return None


def rotations(config: Any) -> set[str]:
    """The kinds of rotary position embeddings that a configuration names."""
    said = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    parts = [said, *(part for part in said.values() if isinstance(part, dict))]
    return {part["rope_type"] for part in parts if isinstance(part.get("rope_type"), str)}
