"""What a forecast of a trial depends on: its configuration, how much of its networks is trained, and their sizes,
counted from their configurations on tensors that have no memory.

Only forecasts read this file. No stage does, so another model in the table leaves every key as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.model import ModelConfig
from pipeline.config.pairs import given
from pipeline.config.trial import TrialConfig
from pipeline.data.settings import MOST_PROMPT_TOKENS
from pipeline.forecast.ocr import TOKENS_PER_WORD
from pipeline.models.anatomy import blocks_of, trunk
from pipeline.models.loading import scratch_config
from pipeline.models.meter import attention_width, cached_numbers, linear_maps, map_sizes
from pipeline.resources.device import gpu_visible
from pipeline.run.hub import available

PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen1.5-0.5B": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
}
"""The config file of the base of the profile `t4`, so that its plan needs no network."""


@dataclass(frozen=True)
class Shape:
    """A decoder-only network in numbers; all but the last two are counts of parameters or widths."""

    vocab: int
    hidden: int
    layers: int
    attention: int
    """Width of all attention heads together."""
    kv: int
    """Numbers cached per position: keys and values of all layers."""
    maps: int
    """Weights of the linear maps in all blocks: a position is multiplied by each once."""
    ports: int
    """Inputs and outputs of these maps, summed: what a LoRA adapter of rank 1 adds."""
    blocks: int
    """Parameters of all blocks."""
    outside: int
    """Parameters of embeddings and final norm."""
    head: int
    """Parameters of the language-modelling head that are not the embedding's."""
    kept_fp32: float
    """Bytes per position that a forward in fp32 keeps for its backward, over all layers."""
    kept_half: float
    """The same where matrix products run in half precision."""

    @property
    def trunk(self) -> int:
        """Parameters without a language-modelling head."""
        return self.blocks + self.outside

    @property
    def parameters(self) -> int:
        """All parameters, a tied head counted once."""
        return self.trunk + self.head

    @property
    def head_map(self) -> int:
        """Weights that a position is multiplied by in the language-modelling head."""
        return self.vocab * self.hidden


@dataclass(frozen=True)
class ScorerShape:
    """A classifier in numbers."""

    parameters: int
    maps: int
    """Weights of its linear maps."""
    block_bytes: float
    """Bytes per position that one block works on."""


BASE_CLASSIFIER = ScorerShape(parameters=125_000_000, maps=85_000_000, block_bytes=4.0 * (4 * 768 + 2 * 3072))
"""Assumed of a classifier whose configuration cannot be had: twelve layers of width 768, 50,000 words."""


def shape_of(config: TrialConfig) -> Shape | None:
    """The policy's shape; None where its sizes cannot be had: a base that is no folder, not in `PUBLISHED`, not on the
    hub."""
    model = config.model
    if model.base is None:
        return scratch_shape(model, config.data.vocab_size)
    found = _configuration(model.base, model.revision)
    return found and measured(found.to_json_string())


def scratch_shape(sizes: ModelConfig, vocabulary: int) -> Shape | None:
    """Shape of a scratch model with so many embeddings."""
    return measured(scratch_config(sizes, vocabulary, 0, 1, 1024).to_json_string())


def assumed_scorers(config: TrialConfig) -> list[str]:
    """Classifiers that judge or reward of which only an assumption is known."""
    parts = [*config.judges.values(), *config.reward.scorers().values()]
    named = dict.fromkeys((part.chosen.model, part.chosen.revision) for part in parts if part.kind == "classifier")
    return [model for model, revision in named if classifier_shape(model, revision) is None]


@lru_cache(maxsize=16)
def classifier_shape(model: str, revision: str | None) -> ScorerShape | None:
    """The shape of a folder or model of the hub with a classification head; None where there is none."""
    from transformers import AutoModelForSequenceClassification

    config = _configuration(model, revision)
    try:
        with torch.device("meta"):
            network = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except Exception:  # an encoder-decoder, or no configuration at all
        return None
    maps = [sizes for module in network.modules() if (sizes := map_sizes(module)) is not None]
    width = int(getattr(config, "hidden_size", 0) or getattr(config, "dim", 0))
    block_bytes = 4.0 * (4 * width + 2 * max((outputs for _, outputs in maps), default=0))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return ScorerShape(parameters, sum(inputs * outputs for inputs, outputs in maps), block_bytes)


@lru_cache(maxsize=16)
def _configuration(model: str, revision: str | None) -> Any:
    """What transformers knows of a model: a folder, one in `PUBLISHED`, or one of the hub; None where that is
    nothing."""
    from transformers import AutoConfig

    try:
        if not Path(model).is_dir():
            if model in PUBLISHED:
                return AutoConfig.for_model(**PUBLISHED[model])
            if not available(model, revision):  # one quiet call; the client itself would ask six times and say so
                return None
        return AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
    except Exception:  # each library has its own class for a setting that it does not know; loading says which
        return None


@lru_cache(maxsize=64)
def measured(config_json: str) -> Shape | None:
    """The shape of the causal language model that a ``config.json`` describes; None for what is none."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        content: dict[str, Any] = json.loads(config_json)
        config = AutoConfig.for_model(**content)
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        maps, layers = linear_maps(network), int(config.num_hidden_layers)
        in_blocks = sum(parameter.numel() for block in blocks_of(network) for parameter in block.parameters())
        body = sum(parameter.numel() for parameter in trunk(network).parameters())
        return Shape(
            vocab=int(config.vocab_size),
            hidden=int(config.hidden_size),
            layers=layers,
            attention=attention_width(config),
            kv=cached_numbers(config),
            maps=sum(linear.weights for linear in maps),
            ports=sum(linear.inputs + linear.outputs for linear in maps),
            blocks=in_blocks,
            outside=body - in_blocks,
            head=sum(parameter.numel() for parameter in network.parameters()) - body,
            kept_fp32=_kept(content, layers, half=False),
            kept_half=_kept(content, layers, half=True),
        )
    except Exception:  # as above
        return None


def _kept(content: dict[str, Any], layers: int, *, half: bool) -> float:
    """Bytes per position that the backward of a trunk needs: measured at two lengths on one layer and on two."""
    one, two = (_saved(content, count, 32, half) - _saved(content, count, 16, half) for count in (1, 2))
    return (one + (two - one) * (layers - 1)) / 16


def _saved(content: dict[str, Any], layers: int, length: int, half: bool) -> int:
    """Bytes that autograd holds after a forward of `length` positions, but for weights; attention is fused."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**content)
    config.num_hidden_layers, config.vocab_size = layers, 16
    config.attn_pdrop = config.attention_dropout = 0.0  # with dropout, attention would not be fused
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * layers)[:layers]
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FakeTensorMode():
        network = AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation="sdpa")
        own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
        ids = torch.zeros(1, length, dtype=torch.long)
        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saving, torch.autocast("cpu", dtype=torch.float16, enabled=half):
            trunk(network)(input_ids=ids, position_ids=ids, use_cache=False)
        return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


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
        rank = self.config.adapter.rank
        return Trained.adapter(self.shape, rank) if adapted else Trained.whole(self.shape, self.shape.trunk)

    @cached_property
    def reward_shape(self) -> Shape:
        """Shape of each learned reward model: the policy's, or that of a scratch trunk."""
        learned = self.config.reward.learned
        scratch = scratch_shape(learned.scratch.sizes(), self.shape.vocab) if learned.trunk == "scratch" else None
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
        return min(length * (TOKENS_PER_WORD if data.prompt_unit == "words" else 1.0), MOST_PROMPT_TOKENS)

    @property
    def learned_response(self) -> float:
        """Most tokens of a response that gradient steps learn from: of a rollout, or of pairs that the user gave."""
        cfg = self.config
        return max(cfg.reward.learned.max_tokens - self.mean_prompt, 1.0) if given(cfg) else cfg.train.response_length


def subject_of(config: TrialConfig) -> ForecastSubject | None:
    """The trial of a configuration; None where the sizes of the base cannot be had."""
    shape = shape_of(config)
    judging, rewarding = (
        tuple(
            classifier_shape(part.chosen.model, part.chosen.revision) or BASE_CLASSIFIER
            for part in parts
            if part.kind == "classifier"
        )
        for parts in (config.judges.values(), config.reward.scorers().values())
    )
    return None if shape is None else ForecastSubject(config, shape, on_card(config), judging, rewarding)


def on_card(config: TrialConfig) -> bool:
    """Whether the trial would run on a GPU."""
    return config.runtime.device == "cuda" or (config.runtime.device == "auto" and gpu_visible())
