"""Sampling on a card: `generate` of transformers with its static cache and its compiled decode step.

The policy itself samples, its linear maps rounded to half precision once for a call: a compiled step would cast every
weight anew for every token. The step is compiled without CUDA graphs: their pool of memory would stay through the
training, and they would be recorded at every rollout, whose weights and cache stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.models.anatomy import CausalLM
from pipeline.models.fp32_heads import Fp32Head
from pipeline.models.precision import DTYPES, Precision
from pipeline.models.sampling import EagerSampler, inverse_cdf


def choose_sampler(
    choice: Literal["auto", "eager", "static"], eager: EagerSampler, precision: Precision, warn: Callable[[str], None]
) -> EagerSampler:
    """Return `eager`, or the static sampler of the same policy where `choice` or the device selects it.

    One line to `warn` for a network whose decode step transformers does not declare to be compilable: it is sampled
    by the eager one.
    """
    if choice == "eager" or (choice == "auto" and precision.device.type != "cuda"):
        return eager
    if not getattr(eager.lm, "_can_compile_fullgraph", False):
        name = type(eager.lm).__name__
        warn(
            "rollouts are sampled by the eager sampler, which is slower: transformers does not declare that a step of"
            f" a {name} can be compiled"
        )
        return eager
    # It imports the caches of transformers, which a trial on a CPU does without.
    from transformers import CompileConfig

    compilation = CompileConfig(mode="default") if precision.device.type == "cuda" else None
    return StaticSampler(eager.lm, eager.temperature, eager.room, eager.eos_id, eager.pad_id, precision, compilation)


@dataclass(frozen=True)
class StaticSampler(EagerSampler):
    """Samples with `generate`. Same noise, same text as the eager sampler's, up to rounding."""

    precision: Precision
    compilation: Any = None
    """The `CompileConfig` of transformers that a step is compiled with; None: it is not."""

    def some(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Tensor:
        """Responses (B, T) of rows that are in memory together."""
        from transformers import GenerationConfig

        (rows, context), width = queries.shape, noise.shape[1]
        noise = noise.to(queries.device)

        def choose(tokens: Tensor, logits: Tensor) -> Tensor:
            """Make the token that the noise draws the likeliest one; at temperature 0 it stays."""
            if not self.temperature:
                return logits
            chosen = inverse_cdf(logits, noise[:, tokens.shape[1] - context], self.temperature)
            return torch.full_like(logits, -torch.inf).scatter_(1, chosen.unsqueeze(1), 0.0)

        wanted = GenerationConfig(
            max_new_tokens=width,
            do_sample=False,  # of what `choose` leaves
            eos_token_id=self.eos_id,
            pad_token_id=self.pad_id,
            compile_config=self.compilation,
            disable_compile=self.compilation is None,
        )
        with self.precision.autocast(), _ready(self.lm, DTYPES[self.precision.name]):
            tokens = self.lm.generate(
                queries,
                attention_mask=query_mask.long(),
                past_key_values=_cache()(config=self.lm.config, max_cache_len=context + width),
                generation_config=wanted,
                logits_processor=[choose],
            )[:, context:]
        responses = torch.full((rows, width), self.pad_id, dtype=queries.dtype, device=queries.device)
        responses[:, : tokens.shape[1]] = tokens
        return responses


@cache
def _cache() -> Any:
    """The static cache of transformers, in the precision of the values: one class, or every call would compile anew."""
    from transformers import StaticCache

    class HalfCache(StaticCache):  # type: ignore[misc]
        """Autocast leaves keys in fp32 behind their rotation, and a static layer takes both in one precision."""

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)

    return HalfCache


@contextmanager
def _ready(lm: CausalLM, dtype: torch.dtype) -> Iterator[None]:
    """The network with all linear maps in `dtype`, its head too, and without defaults of its own for `generate`."""
    from transformers import GenerationConfig

    maps = [one for one in lm.modules() if type(one) in (nn.Linear, Fp32Head) or type(one).__name__ == "Conv1D"]
    weights, defaults = [one.weight for one in maps], lm.generation_config
    try:
        lm.generation_config = GenerationConfig()
        for one in maps:
            one.weight = nn.Parameter(one.weight.detach().to(dtype), requires_grad=False)
        yield
    finally:
        lm.generation_config = defaults
        for one, weight in zip(maps, weights, strict=True):
            one.weight = weight
