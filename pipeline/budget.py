"""The budget of one trial: what a T4 would need, what was spent, and the caps that end it.

A roofline turns counted work into T4-seconds, ``max(FLOPs / peak, bytes / bandwidth)`` for each phase, so
that a trial on another machine still answers "would this have fit?".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.config import ModelConfig, PpoConfig, TrialConfig

GIB = 2**30
T4_FLOPS = 65e12
"""fp16 peak of a T4, FLOP/s (vendor's datasheet)."""
T4_BYTES = 320e9
"""Memory bandwidth of a T4, bytes/s (same)."""
EFFICIENCY = {"generate": 0.5, "score": 0.35, "train": 0.35}
"""Fraction of the roofline assumed for each phase; assumed, not measured on a T4."""
CHUNK_ELEMENTS, CHUNK_TOKENS = 2**22, 128
"""A chunk at the language-modelling head: at most so many (tokens, vocabulary) entries, 16 MiB in fp32, but at least so many
tokens, since a card reads the whole head for each chunk. On a CPU, larger ones are no faster: the allocator maps them afresh."""
TRAINED_BYTES = 16
"""Per trained parameter: fp32 weight, gradient and two Adam moments."""


@dataclass(frozen=True)
class Shape:
    """The sizes that work and memory depend on."""

    vocab: int
    hidden: int
    layers: int
    intermediate: int
    kv_ratio: float = 1.0

    @property
    def block_parameters(self) -> int:
        """Parameters below the embedding: attention and gated MLP of every layer."""
        attention = (2 + 2 * self.kv_ratio) * self.hidden**2
        return round(self.layers * (attention + 3 * self.hidden * self.intermediate))

    @property
    def parameters(self) -> int:
        """All parameters, embedding tied to the head."""
        return self.block_parameters + self.vocab * self.hidden

    def forward_flops(self, tokens: float, context: float, head_tokens: float) -> float:
        """FLOPs of one forward: `tokens` through the trunk at a mean attention span `context`, `head_tokens` through the head."""
        attention = 4 * self.layers * context * self.hidden
        return tokens * (2 * self.block_parameters + attention) + 2 * head_tokens * self.vocab * self.hidden


PUBLISHED = {
    "Qwen/Qwen1.5-0.5B": Shape(vocab=151_936, hidden=1024, layers=24, intermediate=2816),
    "gpt2": Shape(vocab=50_257, hidden=768, layers=12, intermediate=2048),
}
"""Sizes as the models' own config files state them; GPT-2's ungated MLP of 3072 written as a gated one of equal size."""


def chunk_tokens(vocab: int) -> int:
    """Tokens that go through the language-modelling head together."""
    return max(CHUNK_ELEMENTS // vocab, CHUNK_TOKENS)


def shape_of(model: ModelConfig, vocab_size: int) -> Shape | None:
    """Sizes of the policy, or None for a base whose sizes are not known before it is loaded."""
    if model.base is None:
        return Shape(vocab_size, model.hidden_size, model.layers, model.intermediate_size)
    return PUBLISHED.get(model.base)


@dataclass
class Ledger:
    """What a trial has spent, by phase; saved in checkpoints, so that a resumed trial goes on counting."""

    shape: Shape | None
    seconds: dict[str, float] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    generated_tokens: int = 0
    peak_gib: float = 0.0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: value for name, value in vars(self).items() if name != "shape"}

    def load(self, state: dict[str, Any]) -> None:
        """Go on counting where a checkpoint stood."""
        vars(self).update(state)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall-clock time of a block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def count_update(self, cfg: PpoConfig, prompt_tokens: int, response_tokens: int, steps: int) -> None:
        """Add the work of one update of `steps` gradient steps on the valid tokens of the whole rollout."""
        self.generated_tokens += response_tokens
        if self.shape is None:
            return
        for phase, (flops, bytes_) in update_work(self.shape, cfg, prompt_tokens, response_tokens, steps).items():
            self.flops[phase] = self.flops.get(phase, 0.0) + flops
            self.bytes[phase] = self.bytes.get(phase, 0.0) + bytes_

    def t4_seconds(self) -> float:
        """What the counted work would take on a T4 by the roofline, seconds."""
        return sum(roofline(phase, self.flops[phase], self.bytes[phase]) for phase in self.flops)

    def cost(self) -> dict[str, float]:
        """Everything spent, flat, for records."""
        phases = {f"{phase}_s": seconds for phase, seconds in self.seconds.items()}
        return {
            "wall_s": sum(self.seconds.values()),
            **phases,
            "generated_tokens": float(self.generated_tokens),
            "peak_memory_gib": self.peak_gib,
            "tflop": sum(self.flops.values()) / 1e12,
            "t4_s": self.t4_seconds(),
        }

    def exceeded(self, cfg: PpoConfig) -> str | None:
        """The cap that has been reached, in words, or None. Looks at the memory in use: call it once an update."""
        self.peak_gib = max(self.peak_gib, memory_gib())
        hours, memory = sum(self.seconds.values()) / 3600, self.peak_gib
        if hours >= cfg.max_wall_clock_h:
            return f"wall clock {hours:.2f} h reached ppo.max_wall_clock_h = {cfg.max_wall_clock_h:g}"
        if self.generated_tokens >= cfg.max_generated_tokens:
            return f"{self.generated_tokens} generated tokens reached ppo.max_generated_tokens = {cfg.max_generated_tokens}"
        if memory >= cfg.max_memory_gib:
            return f"peak memory {memory:.2f} GiB reached ppo.max_memory_gib = {cfg.max_memory_gib:g}"
        return None


def update_work(shape: Shape, cfg: PpoConfig, prompt_tokens: float, response_tokens: float, steps: int) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of one update of `steps` gradient steps, by phase. Weights move in fp16; the optimiser's state in fp32."""
    tokens = prompt_tokens + response_tokens
    span = tokens / cfg.batch_size / 2
    forward = shape.forward_flops(tokens, span, response_tokens)
    weights = 2.0 * shape.parameters
    # A separate critic is one more trunk, without a language-modelling head, in scoring and in training.
    critic = shape.forward_flops(tokens, span, 0) if cfg.critic == "separate" else 0.0
    trained = 2 if cfg.critic == "separate" else 1
    return {
        "generate": (forward, weights * cfg.response_length),
        "score": (3 * forward + critic, (2 + trained) * weights),
        "train": (
            3 * (forward + critic) * steps / cfg.num_mini_batches,
            steps * trained * (3 * weights + 2 * TRAINED_BYTES * shape.parameters),
        ),
    }


def roofline(phase: str, flops: float, bytes_: float) -> float:
    """Seconds on a T4: the slower of arithmetic and memory, at the phase's assumed efficiency."""
    return max(flops / T4_FLOPS, bytes_ / T4_BYTES) / EFFICIENCY[phase]


@dataclass(frozen=True)
class Estimate:
    """A prediction before anything is spent."""

    parameters: int
    t4_hours: float
    memory_gib: dict[str, float]
    cap_hours: float
    cap_gib: float

    @property
    def total_gib(self) -> float:
        return sum(self.memory_gib.values())

    @property
    def fits(self) -> bool:
        return self.t4_hours <= self.cap_hours and self.total_gib <= self.cap_gib


def estimate(config: TrialConfig) -> Estimate | None:
    """Predict T4-hours and peak memory of the PPO stage; None for a base whose sizes are not known here.

    Assumes full-length responses, prompts of 1.5 tokens a word, and half precision in all phases.
    """
    shape, cfg = shape_of(config.model, config.data.vocab_size), config.ppo
    if shape is None:
        return None
    prompt = (1.5 if config.data.prompt_unit == "words" else 1.0) * config.data.prompt_length[1]
    work = update_work(shape, cfg, cfg.batch_size * prompt, cfg.batch_size * cfg.response_length, cfg.steps_per_update)
    seconds = cfg.updates * sum(roofline(phase, *spent) for phase, spent in work.items())
    return Estimate(shape.parameters, seconds / 3600, _memory(shape, config, prompt), cfg.max_wall_clock_h, cfg.max_memory_gib)


def _memory(shape: Shape, config: TrialConfig, prompt: float) -> dict[str, float]:
    cfg, runtime = config.ppo, config.runtime
    rows = min(runtime.micro_batch_size, cfg.mini_batch_size)
    length = prompt + cfg.response_length
    # Kept for the backward pass, per token and layer: about 17 vectors of the width (sdpa keeps no attention matrix).
    trunks = 2 if cfg.critic == "separate" else 1
    activations = 2.0 * trunks * rows * length * shape.layers * (17 * shape.hidden + 3 * shape.intermediate)
    # Measuring keeps the most chunks in fp32 at once: log-probabilities of both networks, their exponent, a product, the logits.
    logits = 5 * 4.0 * chunk_tokens(shape.vocab) * shape.vocab
    cache = 4.0 * min(runtime.rollout_batch_size, cfg.batch_size) * length * shape.layers * shape.hidden * shape.kv_ratio
    parts = {
        "policy, gradients, optimiser": TRAINED_BYTES * shape.parameters,
        "critic, gradients, optimiser": TRAINED_BYTES * shape.parameters if cfg.critic == "separate" else 0.0,
        "reference": 4.0 * shape.parameters,
        "reward": 4.0 * shape.parameters if config.reward.kind == "learned" else 0.0,
        "activations": activations,
        "logits": logits,
        "cache": cache,
    }
    return {name: size / GIB for name, size in parts.items()}


def cap_memory(cfg: PpoConfig) -> None:
    """Hold the CUDA allocator to the cap on a card of any size, and start its high-water mark afresh; nothing on a CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(cfg.max_memory_gib * GIB / total, 1.0))


def memory_gib() -> float:
    """High-water mark of the CUDA allocator where one is in use, else the process's resident set now."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated()) / GIB
    import psutil

    return float(psutil.Process().memory_info().rss) / GIB
