"""What the PPO stage of a trial will take, before any of it is spent: peak memory by component, T4-hours by phase.

Assumed: responses of full length, for memory the longest prompt, for time the mean one. Only linear maps, attention,
optimiser and logits are counted; what an allocator loses between blocks is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.budget.machine import GIB
from pipeline.budget.roofline import (
    BYTES_BACKWARD,
    BYTES_CACHE,
    BYTES_GRADIENT,
    BYTES_LOGIT,
    BYTES_READ_CAST,
    BYTES_READ_HALF,
    BYTES_STEP,
    t4_seconds,
)
from pipeline.budget.shape import Shape, chunk_tokens
from pipeline.config import PpoConfig, TrialConfig

Device = Literal["cpu", "cuda"]
TOKENS_PER_WORD = 1.5
INTERPRETER_GIB, ADAPTER_LIBRARY_GIB = 0.40, 0.20
"""Resident set of a worker with its libraries but no network, and what importing peft adds: measured on Linux, CPU build of torch."""
HEAP = 1.7
"""On a CPU, resident memory over living tensors of what comes and goes: the heap keeps freed blocks. Measured on networks of 10 M
and 42 M parameters; others agree within 15 % of the whole (tests/memory_check.py)."""
NF4_BYTES = 0.516
"""Per weight in 4 bits: half a byte, and the scales of blocks of 64, themselves in 8 bits (Dettmers 2023)."""
CPU_BUCKET = 16
"""Episodes that go through a network together on a CPU where no gradient is wanted (`pipeline.models.policy`)."""


@dataclass(frozen=True)
class Trial:
    """What an estimate depends on: the configuration, the policy's shape, and parameters of networks that only score."""

    config: TrialConfig
    shape: Shape
    scorers: int
    """Parameters of classifiers that reward or judge; learned rewards are the policy's trunk."""
    device: Device

    @property
    def learned(self) -> int:
        """Reward models with a trunk like the policy's."""
        return sum(part.kind == "learned" for part in self.config.reward.scorers().values())

    @property
    def longest_prompt(self) -> float:
        return min(self._per_unit * self.config.data.prompt_length[1], self.config.data.max_prompt_tokens)

    @property
    def mean_prompt(self) -> float:
        low, high = self.config.data.prompt_length
        return min(self._per_unit * (low + high) / 2, self.config.data.max_prompt_tokens)

    @property
    def _per_unit(self) -> float:
        return TOKENS_PER_WORD if self.config.data.prompt_unit == "words" else 1.0


@dataclass(frozen=True)
class Trained:
    """How much of a policy is trained; counts of weights."""

    parameters: int
    """With gradients and optimiser state."""
    maps: float
    """Weights of linear maps that are trained."""
    below: float
    """Weights of linear maps through which a gradient passes."""
    forward: float
    """Weights of all linear maps, an adapter's included."""
    head: bool

    @classmethod
    def of(cls, shape: Shape, cfg: PpoConfig) -> Trained:
        if cfg.adapter == "lora":
            extra = cfg.lora_rank * shape.ports
            return cls(extra, extra, shape.maps + extra, shape.maps + extra, False)
        upper = 1 - cfg.frozen_layers / shape.layers
        head = not (cfg.frozen_layers and shape.head == 0)
        outside = 0 if cfg.frozen_layers else shape.outside
        return cls(round(shape.blocks * upper) + outside + shape.head, shape.maps * upper, shape.maps * upper, shape.maps, head)


@dataclass(frozen=True)
class Estimate:
    """A prediction for one trial."""

    parameters: int
    trained: int
    memory_gib: dict[str, float]
    hours: dict[str, float]
    """On a T4, by phase."""
    cap_gib: float
    cap_hours: float

    @property
    def total_gib(self) -> float:
        return sum(self.memory_gib.values())

    @property
    def t4_hours(self) -> float:
        return sum(self.hours.values())

    @property
    def fits(self) -> bool:
        return self.t4_hours <= self.cap_hours and self.total_gib <= self.cap_gib


def estimate(trial: Trial) -> Estimate:
    """Predict memory and time of the PPO stage."""
    cfg = trial.config.ppo
    trained = Trained.of(trial.shape, cfg)
    hours = {phase: cfg.updates * t4_seconds(phase, *work) / 3600 for phase, work in work_of_update(trial, trained).items()}
    memory = {name: size / GIB for name, size in _memory(trial, trained).items() if size}
    return Estimate(trial.shape.parameters, trained.parameters, memory, hours, cfg.max_memory_gib, cfg.max_wall_clock_h)


def work_of_update(trial: Trial, trained: Trained) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of one update, by phase."""
    shape, cfg, runtime = trial.shape, trial.config.ppo, trial.config.runtime
    rows, prompt, response = cfg.batch_size, trial.mean_prompt, cfg.response_length
    tokens, span, head = rows * (prompt + response - 1), prompt + response - 1, shape.vocab * shape.hidden
    pairs = 4.0 * shape.attention * shape.layers
    read = BYTES_READ_CAST if cfg.adapter == "lora" else BYTES_READ_HALF
    calls = -(-rows // runtime.rollout_batch_size) * response
    mean_keys = prompt + response / 2
    generate = (
        2.0 * tokens * trained.forward + pairs * rows * (prompt**2 + response * mean_keys) + 2.0 * rows * response * head,
        calls * (shape.blocks + head) * read + rows * response * (mean_keys * shape.kv * BYTES_CACHE + shape.vocab * BYTES_LOGIT),
    )
    separate = cfg.critic == "separate"
    networks = 2 + trial.learned + separate
    one = 2.0 * tokens * shape.maps + pairs * tokens * span
    chunks = -(-rows * response // chunk_tokens(shape.vocab, True))
    score = (
        networks * one + 2.0 * tokens * trial.scorers + 2 * 2.0 * rows * response * head,
        (networks * shape.blocks + trial.scorers) * -(-rows // runtime.rollout_batch_size) * BYTES_READ_CAST
        + 2 * chunks * head * BYTES_READ_CAST
        + 2 * rows * response * shape.vocab * BYTES_LOGIT,
    )
    again = 1.0 if runtime.gradient_checkpointing else 0.0
    through = trained.forward * (1 + again) + trained.below + trained.maps
    passes = 2.0 * tokens * through + pairs * tokens * span * (3 + again)
    critic = (3 + again) * one if separate else 0.0
    micros = -(-rows // min(runtime.micro_batch_size, cfg.mini_batch_size))
    moved = 1.0 * shape.blocks * (BYTES_READ_CAST + BYTES_BACKWARD) * (1 + separate)
    moved += (trained.maps + separate * shape.maps) * BYTES_GRADIENT
    head_bytes = head * (BYTES_READ_CAST + BYTES_BACKWARD + BYTES_GRADIENT * trained.head)
    steps = cfg.num_mini_batches * (trained.parameters + separate * shape.trunk) * BYTES_STEP
    epoch = (
        passes + critic + 2.0 * rows * response * head * (2 + trained.head),
        micros * moved + chunks * head_bytes + 2 * rows * response * shape.vocab * BYTES_LOGIT + steps,
    )
    return {"generate": generate, "score": score, "train": (cfg.num_ppo_epochs * epoch[0], cfg.num_ppo_epochs * epoch[1])}


def _memory(trial: Trial, trained: Trained) -> dict[str, float]:
    """Bytes at the peak, by component. What a phase needs for a while is that of the phase that needs most."""
    shape, cfg, half = trial.shape, trial.config.ppo, trial.device == "cuda"
    own = shape.trunk if cfg.critic == "separate" else 0
    adapter = trained.parameters if cfg.adapter == "lora" else 0
    weights = 4.0 * shape.parameters + 4.0 * adapter
    if cfg.quantize == "4bit":
        weights -= shape.maps * (4.0 - NF4_BYTES)
    lasting = {
        "interpreter and libraries": 0.0 if half else (INTERPRETER_GIB + ADAPTER_LIBRARY_GIB * bool(adapter)) * GIB,
        "policy": weights,
        "gradients": 4.0 * (trained.parameters + own),
        "optimiser": 8.0 * (trained.parameters + own),
        "last good weights": 0.0 if half else 4.0 * (trained.parameters + own),
        "reference": 0.0 if cfg.adapter == "lora" else 4.0 * shape.parameters,
        "critic": 4.0 * own,
        "reward": 4.0 * (trial.learned * shape.parameters + trial.scorers),
    }
    passing = max(_passing(trial, trained, half), key=lambda parts: sum(parts.values()))
    return lasting | {name: size * (1.0 if half else HEAP) for name, size in passing.items()}


def _passing(trial: Trial, trained: Trained, half: bool) -> list[dict[str, float]]:
    """What training, measuring and sampling need beside the networks, bytes."""
    shape, cfg, runtime = trial.shape, trial.config.ppo, trial.config.runtime
    length = trial.longest_prompt + cfg.response_length - 1
    rows = min(runtime.micro_batch_size, cfg.mini_batch_size)
    kept = shape.kept_half if half else shape.kept_fp32
    block = kept / shape.layers
    critics = 2 if cfg.critic == "separate" else 1
    if runtime.gradient_checkpointing:
        kept = 4.0 * shape.hidden * shape.layers + block
    elif cfg.adapter == "lora" or cfg.frozen_layers:
        kept *= 1.0 if cfg.adapter == "lora" else 1 - cfg.frozen_layers / shape.layers
    head, entries = shape.vocab * shape.hidden, chunk_tokens(shape.vocab, half) * shape.vocab
    # In half precision: a copy of every weight. Those of trained ones are kept as long as autocast lasts, those of frozen ones
    # until the backward of their block, which may come at once.
    once = cfg.quantize == "4bit" or (cfg.adapter == "lora" and runtime.gradient_checkpointing)
    copies = 2.0 * (shape.maps * critics / (shape.layers if once else 1) + head) if half else 0.0
    train = {
        "activations": rows * length * kept * critics,
        "logits": entries * (16.0 if half else 12.0) + head * (6.0 if half else 4.0) * trained.head,
        "half-precision copies": copies,
    }
    sampled = min(runtime.rollout_batch_size, cfg.batch_size)
    cache = sampled * length * shape.kv * (3.0 if half else 4.0) * (1 + 1 / shape.layers)
    generate = {"cache": cache, "logits": sampled * shape.vocab * 12.0, "half-precision copies": copies if trained.head else 0.0}
    shelf = sampled if half else min(sampled, CPU_BUCKET)
    measure = {"activations": shelf * length * block, "logits": entries * 20.0, "half-precision copies": copies if trained.head else 0.0}
    return [train, generate, measure]
