"""What an estimate of a trial depends on: its configuration, the shapes of its networks, how much of the policy is
trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    """Classifiers that reward or judge, one for each place that names one; learned rewards are the policy's trunk."""

    timed: bool = True
    """Whether a T4's roofline is held against the cap on the wall clock."""

    @property
    def learned(self) -> int:
        """Reward models with a trunk like the policy's."""
        return sum(part.kind == "learned" for part in self.config.reward.scorers().values())

    @property
    def on_card(self) -> bool:
        return self.device == "cuda"

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
    def of(cls, shape: Shape, cfg: TrialConfig) -> Trained:
        if cfg.adapter.kind == "lora":
            extra = cfg.adapter.rank * shape.ports
            return cls(extra, extra, shape.maps + extra, shape.maps + extra, False)
        upper = 1 - cfg.adapter.frozen_layers / shape.layers
        head = not (cfg.adapter.frozen_layers and shape.head == 0)
        outside = 0 if cfg.adapter.frozen_layers else shape.outside
        return cls(
            round(shape.blocks * upper) + outside + shape.head, shape.maps * upper, shape.maps * upper, shape.maps, head
        )
