"""What an estimate of a trial depends on: its configuration, the shapes of its networks, how much of the policy is
trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.pairs import given
from pipeline.config.trial import TrialConfig
from pipeline.forecast.shapes import ScorerShape, Shape

Device = Literal["cpu", "cuda"]
TOKENS_PER_WORD = 1.5


@dataclass(frozen=True)
class ForecastSubject:
    """What an estimate depends on: the configuration, the policy's shape, and those of networks that only score."""

    config: TrialConfig
    shape: Shape
    device: Device
    scorers: tuple[ScorerShape, ...] = ()
    """Classifiers that reward or judge, one for each place that names one; learned rewards are of `reward_shape`."""

    timed: bool = True
    """Whether a T4's roofline is held against the cap on the wall clock."""

    @property
    def learned(self) -> int:
        """Reward models that are trained, each of `reward_shape`."""
        return self.config.learned_rewards

    @property
    def reward_shape(self) -> Shape:
        """Of a reward model: the policy's, or that of a scratch trunk."""
        # It imports torch, which a plan of cached trials does not.
        from pipeline.forecast.policy_shape import scratch_shape

        reward = self.config.reward
        scratch = scratch_shape(reward.sizes(), self.shape.vocab) if reward.trunk == "scratch" else None
        return scratch or self.shape

    @property
    def rewarding(self) -> tuple[ScorerShape, ...]:
        """Of the classifiers those that reward; they stand behind those that judge."""
        return self.scorers[len(self.scorers) - self.config.reward_classifiers :]

    @property
    def offloads(self) -> bool:
        """Whether frozen networks are off the card while no rollout is scored."""
        return self.on_card and self.config.runtime.offload_reference and self.config.adapter.kind == "none"

    @property
    def learned_response(self) -> float:
        """Most tokens of a response that gradient steps learn from: of a rollout, or of pairs that the user gave."""
        cfg = self.config
        return max(cfg.reward.max_tokens - self.mean_prompt, 1.0) if given(cfg) else cfg.train.response_length

    @property
    def on_card(self) -> bool:
        return self.device == "cuda"

    @property
    def static_sampler(self) -> bool:
        """Whether rollouts are sampled with a copy of the policy, a static cache and captured steps; also where an
        architecture will turn out not to allow it."""
        return self.config.runtime.static_sampler(self.on_card)

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


FROZEN_BYTES = {"none": 4.0, "fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "8bit": 1.0, "4bit": 0.516}
"""Per frozen weight of a linear map, by how it is held. In 4 bits half a byte, and the scales of blocks of 64,
themselves in 8 bits (Dettmers 2023); in 8 bits one scale for each output is left out."""


@dataclass(frozen=True)
class Trained:
    """How much of a network is trained; counts of weights."""

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
    def of(cls, shape: Shape, cfg: TrialConfig) -> Trained:
        """Of the policy."""
        if not cfg.algorithm.learns:
            return cls(0, 0.0, 0.0, shape.maps, False)
        if cfg.adapter.kind == "lora":
            return cls._adapter(shape, cfg.adapter.rank)
        upper = 1 - cfg.adapter.frozen_layers / shape.layers
        head = not (cfg.adapter.frozen_layers and shape.head == 0)
        outside = 0 if cfg.adapter.frozen_layers else shape.outside
        return cls(
            round(shape.blocks * upper) + outside + shape.head, shape.maps * upper, shape.maps * upper, shape.maps, head
        )

    @classmethod
    def of_critic(cls, shape: Shape, cfg: TrialConfig) -> Trained:
        """Of the trunk of a separate critic; nothing where there is none."""
        if cfg.critic.kind != "separate":
            return cls(0, 0, 0, 0, False)
        if cfg.critic.has_adapter:
            return cls._adapter(shape, cfg.critic.adapter_rank)
        return cls(shape.trunk, shape.maps, shape.maps, shape.maps, False)

    @classmethod
    def _adapter(cls, shape: Shape, rank: int) -> Trained:
        extra = rank * shape.ports
        return cls(extra, extra, shape.maps + extra, shape.maps + extra, False)
