"""The networks of a trial in numbers: sizes counted from their configurations on tensors that have no memory, and how
much of each network is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.config.model import ModelConfig
from pipeline.config.trial import TrialConfig
from pipeline.data.settings import MOST_PROMPT_TOKENS
from pipeline.models.anatomy import trunk
from pipeline.models.loading import scratch_config
from pipeline.models.meter import attention_width, cached_numbers, linear_maps
from pipeline.resources.machine import gpu_visible
from pipeline.rewards.learned_settings import is_judged
from pipeline.run.hub import cause_of_absence

TOKENS_PER_WORD = 1.5
PUBLISHED = Path(__file__).with_name("published")
"""Folders with the ``config.json`` of bases, by names on the hub: the plan of the profile `t4` needs no network."""
CLASSIFIER = 125_000_000
"""Parameters assumed of every classifier: those of a base model of twelve layers, width 768 and 50,000 words."""


@dataclass(frozen=True)
class Shape:
    """A decoder-only network in numbers.

    `attention`: width of all heads together; `kv`: numbers cached per position, over all layers; `maps`: weights of the
    linear maps in all blocks; `ports`: their inputs and outputs, summed, which are the parameters of a LoRA adapter of
    rank 1; `trunk`, `parameters`: parameters without a language-modelling head and in all, a tied head counted once.
    """

    vocab: int
    hidden: int
    layers: int
    attention: int
    kv: int
    maps: int
    ports: int
    trunk: int
    parameters: int

    @property
    def head_map(self) -> int:
        """Weights of the language-modelling head, tied or not."""
        return self.vocab * self.hidden


def shape_of(config: TrialConfig) -> Shape | None:
    """The policy's shape; None for a base that is no folder, not in `PUBLISHED` and not on the hub."""
    model = config.model
    if model.base is None:
        return scratch_shape(model, config.data.vocab_size)
    folder = next((str(path) for path in (PUBLISHED / model.base, Path(model.base)) if path.is_dir()), None)
    try:
        # One quiet call; the hub's client would retry six times.
        if folder or not cause_of_absence("model", model.base, model.revision):
            found = AutoConfig.from_pretrained(folder or model.base, revision=model.revision, trust_remote_code=False)
            return measured(found.to_json_string())
    except Exception:  # each library has its own class for an unknown setting; loading reports it
        return None
    return None


def scratch_shape(sizes: ModelConfig, vocabulary: int) -> Shape | None:
    """The shape of a scratch model with so many embeddings."""
    return measured(scratch_config(sizes, vocabulary, 0, 1, 1024).to_json_string())


@lru_cache(maxsize=64)
def measured(config_json: str) -> Shape | None:
    """The shape of the causal language model that a ``config.json`` describes; None for any other content."""
    try:
        config = AutoConfig.for_model(**json.loads(config_json))
        with init_empty_weights(include_buffers=True):
            network = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        maps = linear_maps(network)
        return Shape(
            vocab=int(config.vocab_size),
            hidden=int(config.hidden_size),
            layers=int(config.num_hidden_layers),
            attention=attention_width(config),
            kv=cached_numbers(config),
            maps=sum(linear.weights for linear in maps),
            ports=sum(linear.inputs + linear.outputs for linear in maps),
            trunk=sum(parameter.numel() for parameter in trunk(network).parameters()),
            parameters=sum(parameter.numel() for parameter in network.parameters()),
        )
    except Exception:  # as above
        return None


@dataclass(frozen=True)
class Trained:
    """Trained part of a network, as counts of weights.

    `parameters`: with gradients and optimiser state; `maps`: trained weights of linear maps; `forward`: weights of all
    linear maps, an adapter's included, through which a gradient passes too; `head`: true where it is trained.
    """

    parameters: int
    maps: int
    forward: int
    head: bool = False


@dataclass(frozen=True)
class ForecastSubject:
    """Subject of a forecast: `shape` is that of the policy."""

    config: TrialConfig
    shape: Shape
    on_card: bool

    @cached_property
    def policy(self) -> Trained:
        """Trained part of the policy."""
        if not self.config.algorithm.learns:
            return Trained(0, 0, self.shape.maps)
        return self._trained(self.config.adapter.kind == "lora", self.shape.parameters, head=True)

    @cached_property
    def critic(self) -> Trained:
        """Trained part of a separate critic's trunk; nothing for a shared critic or none."""
        critic = self.config.critic
        return self._trained(critic.has_adapter, self.shape.trunk) if critic.kind == "separate" else Trained(0, 0, 0)

    def _trained(self, lora: bool, parameters: int, head: bool = False) -> Trained:
        maps, added = self.shape.maps, self.config.adapter.rank * self.shape.ports
        return Trained(added, added, maps + added) if lora else Trained(parameters, maps, maps, head)

    @cached_property
    def reward_shape(self) -> Shape:
        """Shape of each learned reward model: the policy's, or that of a scratch trunk."""
        learned = self.config.reward.learned
        scratch = scratch_shape(learned.scratch.sizes(), self.shape.vocab) if learned.trunk == "scratch" else None
        return scratch or self.shape

    @property
    def reward_parameters(self) -> int:
        """Parameters of all reward models, and of all classifiers that reward or judge."""
        scorers = [*self.config.judges.values(), *self.config.reward.scorers().values()]
        classifiers = CLASSIFIER * sum(scorer.kind == "classifier" for scorer in scorers)
        return self.config.learned_rewards * self.reward_shape.parameters + classifiers

    @property
    def longest_prompt(self) -> float:
        return self._tokens(self.config.data.prompt_length[1])

    @property
    def mean_prompt(self) -> float:
        return self._tokens(sum(self.config.data.prompt_length) / 2)

    def _tokens(self, length: float) -> float:
        data = self.config.data
        return min(length * (TOKENS_PER_WORD if data.prompt_unit == "words" else 1.0), MOST_PROMPT_TOKENS)

    @property
    def episode(self) -> float:
        """Positions of a mean prompt and a full response that a network reads."""
        return self.mean_prompt + self.config.train.response_length - 1

    @property
    def learned_response(self) -> float:
        """Most tokens of a response that gradient steps learn from: of a rollout, or of the user's pairs."""
        cfg = self.config
        of_the_user = cfg.train.data == "pairs" and not is_judged(cfg.reward.preferences)
        return max(cfg.reward.learned.max_tokens - self.mean_prompt, 1.0) if of_the_user else cfg.train.response_length


def on_card(config: TrialConfig) -> bool:
    """Return whether the trial would run on a GPU."""
    return config.runtime.device == "cuda" or (config.runtime.device == "auto" and gpu_visible())
