"""What a forecast of a trial depends on: its configuration, the shapes of its networks, how much of them is trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pipeline.config.pairs import given
from pipeline.config.trial import TrialConfig
from pipeline.forecast.ocr import TOKENS_PER_WORD
from pipeline.forecast.shapes import BASE_CLASSIFIER, ScorerShape, Shape, classifier_shape, scratch_shape, shape_of
from pipeline.resources.device import gpu_visible


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
    head: bool = False

    @classmethod
    def whole(cls, shape: Shape, parameters: int) -> Trained:
        return cls(parameters, shape.maps, shape.maps, shape.maps)

    @classmethod
    def adapter(cls, shape: Shape, rank: int) -> Trained:
        extra = rank * shape.ports
        return cls(extra, extra, shape.maps + extra, shape.maps + extra)


@dataclass(frozen=True)
class ForecastSubject:
    """A trial as a forecast sees it."""

    config: TrialConfig
    shape: Shape
    """Of the policy."""
    on_card: bool
    judging: tuple[ScorerShape, ...] = ()
    """Classifiers that judge, one for each place that names one."""
    rewarding: tuple[ScorerShape, ...] = ()
    """Classifiers that reward."""

    @cached_property
    def policy(self) -> Trained:
        """How much of the policy is trained."""
        shape, adapter = self.shape, self.config.adapter
        if not self.config.algorithm.learns:
            return Trained(0, 0.0, 0.0, shape.maps)
        if adapter.kind == "lora":
            return Trained.adapter(shape, adapter.rank)
        upper = 1 - adapter.frozen_layers / shape.layers
        outside = 0 if adapter.frozen_layers else shape.outside
        parameters, maps = round(shape.blocks * upper) + outside + shape.head, shape.maps * upper
        return Trained(parameters, maps, maps, shape.maps, bool(outside or shape.head))

    @cached_property
    def critic(self) -> Trained:
        """How much of a separate critic's trunk is trained; nothing where there is none."""
        critic = self.config.critic
        if critic.kind != "separate":
            return Trained(0, 0.0, 0.0, 0.0)
        adapted = critic.has_adapter
        return (
            Trained.adapter(self.shape, critic.adapter_rank) if adapted else Trained.whole(self.shape, self.shape.trunk)
        )

    @cached_property
    def reward_shape(self) -> Shape:
        """Shape of each learned reward model: the policy's, or that of a scratch trunk."""
        reward = self.config.reward
        scratch = scratch_shape(reward.sizes(), self.shape.vocab) if reward.trunk == "scratch" else None
        return scratch or self.shape

    @property
    def offloads(self) -> bool:
        """Whether frozen networks are off the card while no rollout is scored."""
        return self.on_card and self.config.runtime.offload_reference and self.config.adapter.kind == "none"

    @property
    def longest_prompt(self) -> float:
        return self._tokens(self.config.data.prompt_length[1])

    @property
    def mean_prompt(self) -> float:
        return self._tokens(sum(self.config.data.prompt_length) / 2)

    def _tokens(self, length: float) -> float:
        data = self.config.data
        return min(length * (TOKENS_PER_WORD if data.prompt_unit == "words" else 1.0), data.max_prompt_tokens)

    @property
    def learned_response(self) -> float:
        """Most tokens of a response that gradient steps learn from: of a rollout, or of pairs that the user gave."""
        cfg = self.config
        return max(cfg.reward.max_tokens - self.mean_prompt, 1.0) if given(cfg) else cfg.train.response_length


def subject_of(config: TrialConfig) -> ForecastSubject | None:
    """The trial of a configuration; None where the sizes of the base cannot be had."""
    shape = shape_of(config)
    judging, rewarding = (
        tuple(
            classifier_shape(part.model, part.revision) or BASE_CLASSIFIER for part in parts if part.model is not None
        )
        for parts in (config.judges.values(), config.reward.scorers().values())
    )
    return None if shape is None else ForecastSubject(config, shape, on_card(config), judging, rewarding)


def on_card(config: TrialConfig) -> bool:
    """Whether the trial would run on a GPU."""
    return config.runtime.device == "cuda" or (config.runtime.device == "auto" and gpu_visible())
