"""Inputs of all contenders: the same weights, prompts, reward and settings, at a named size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

from pipeline.config.loading import load_config
from pipeline.config.networks import ModelConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import scratch_model
from pipeline.models.seeding import stream

PAD, EOS = 0, 1


@dataclass(frozen=True)
class Size:
    """One scale. Every prompt has its full length, and so has every response."""

    model: ModelConfig
    vocab: int
    prompt: int
    response: int
    measured: int
    """Updates after the warm-up."""
    batch: int = 64

    def settings(self, kind: str) -> TrialConfig:
        """4 epochs x 4 mini-batches on one rollout; `kind`: the critic of PPO, or an algorithm without one."""
        changes = {
            "train.steps": (self.measured + 1) * 16, "train.batch_size": self.batch, "train.num_mini_batches": 4,
            "train.num_epochs": 4, "train.response_length": self.response, "train.missing_eos": "none",
            "runtime.micro_batch_size": self.batch // 4, "runtime.rollout_batch_size": self.batch,
            "runtime.checkpoint_updates": 10**6,
        }  # fmt: skip
        return load_config("tiny", {**changes, "critic.kind" if kind in ("shared", "separate") else "algorithm": kind})

    def network(self) -> Qwen2ForCausalLM:
        """Random weights, the same at every call."""
        return scratch_model(self.model, self.vocab, PAD, EOS, self.prompt + self.response, seed=0)

    def prompts(self) -> Tensor:
        """(4 x batch, P) random tokens."""
        return torch.randint(2, self.vocab, (4 * self.batch, self.prompt), generator=stream("bench prompts"))


def _sizes(hidden: int, layers: int, heads: int, intermediate: int) -> ModelConfig:
    return ModelConfig(hidden_size=hidden, layers=layers, heads=heads, intermediate_size=intermediate)


SIZES = {
    "smoke": Size(_sizes(16, 1, 2, 32), 50, 4, 6, measured=1, batch=8),
    "tiny": Size(load_config("tiny").model, 700, 8, 32, measured=4),
    "32k": Size(_sizes(256, 2, 4, 704), 32_000, 32, 48, measured=1),
    "qwen0.5b": Size(_sizes(1024, 24, 16, 2816), 151_936, 64, 128, measured=2),
}
"""A test of the benchmark; the policy of the default profile; a vocabulary of 32,000; the shape of Qwen1.5-0.5B, for a
GPU."""


def reward(ids: Tensor) -> Tensor:
    """(B, L) tokens to the reward of every prefix (B, L): the mean of an arbitrary number for each token."""
    return ((ids * 7) % 5 - 2).float().cumsum(1) / torch.arange(1, ids.shape[1] + 1, device=ids.device)
