"""The networks of a trial in numbers, counted on tensors that have no memory, and the peak memory of every stage that
holds networks, by component: arithmetic on shapes.

Assumed: texts and responses of full length, the longest prompt. What an allocator loses between blocks is not counted:
on a CPU, networks of 10 M to 56 M parameters agree with measured peaks within 15 % (tests/memory_check.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.config.effects import value_at
from pipeline.config.trial import TrialConfig
from pipeline.data.settings import MEASURED_TEXTS, MOST_PROMPT_TOKENS
from pipeline.models.loading import scratch_config
from pipeline.models.meter import attention_width, cached_numbers, linear_maps
from pipeline.models.out_of_memory import BUCKET, chunk_tokens, ranking_rows, text_rows
from pipeline.models.trunk import trunk
from pipeline.resources.machine import GIB, gpu_visible
from pipeline.rewards.settings import is_judged
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
        return measured(scratch_config(model, config.data.vocab_size, 0, 1, 1024).to_json_string())
    folder = next((str(path) for path in (PUBLISHED / model.base, Path(model.base)) if path.is_dir()), None)
    try:
        # One quiet call; the hub's client would retry six times.
        if folder or not cause_of_absence("model", model.base, model.revision):
            found = AutoConfig.from_pretrained(folder or model.base, revision=model.revision, trust_remote_code=False)
            return measured(found.to_json_string())
    except Exception:  # each library has its own class for an unknown setting; loading reports it
        return None
    return None


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
        if learned.trunk != "scratch":
            return self.shape
        config = scratch_config(learned.scratch.sizes(), self.shape.vocab, 0, 1, 1024)
        return measured(config.to_json_string()) or self.shape

    @property
    def reward_parameters(self) -> int:
        """Parameters of all reward models, and of all classifiers that reward or judge."""
        classifiers = CLASSIFIER * sum(scorer.kind == "classifier" for scorer in self.config.scorers.values())
        return len(self.config.reward.trained()) * self.reward_shape.parameters + classifiers

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


FROZEN_BYTES = {"none": 4.0, "8bit": 1.0, "4bit": 0.516}
"""Bytes per frozen weight of a linear map, by `quantize`. In 4 bits half a byte, and the scales of blocks of 64,
themselves in 8 bits (Dettmers 2023); in 8 bits one scale for each output is left out."""
INTERPRETER_GIB = 0.40
"""Resident set of a worker with its libraries but no network. Measured on Linux."""
KEPT_BYTES = {False: 4.7, True: 2.936}
"""Bytes per input and output of the linear maps that a position keeps for its backward, in fp32 and on a card in half
precision, as counted on networks of the architectures Qwen2 and Llama of 30 k to 1.1 G parameters within 10 %."""
COPIES = "half-precision copies"
Parts = dict[str, float]


def memory_by_stage(trial: ForecastSubject) -> dict[str, Parts]:
    """Memory at the peak of each stage, that of its largest phase [GiB], by component."""
    cfg, own = trial.config, 4.0 * trial.shape.parameters
    asked = {"reference": own, "reward": 4.0 * trial.reward_parameters}
    untrained = [_sampling(trial), _measuring(trial, *_at_once(trial))]
    texts = _measuring(trial, min(cfg.runtime.rollout_batch_size, MEASURED_TEXTS), cfg.sft.max_tokens)
    phases: dict[str, list[Parts]] = {
        "sft": [{"policy": own, **_texts(trial)}],
        "reward": [
            {"policy": own * (cfg.rounds > 1), **asked, **phase} for phase in [*untrained, *_learned_rewards(trial)]
        ],
        "train": [*_train(trial)] if cfg.algorithm.learns else [{"policy": own * (not trial.on_card)}],  # a copy
        "evaluate": [{"policy": own, **asked, **phase} for phase in [*untrained, texts]],
    }
    libraries = 0.0 if trial.on_card else INTERPRETER_GIB * GIB
    most = {stage: max(of_stage, key=lambda parts: sum(parts.values())) for stage, of_stage in phases.items()}
    found = {stage: {"interpreter and libraries": libraries, **parts} for stage, parts in most.items()}
    return {stage: {name: size / GIB for name, size in parts.items() if size} for stage, parts in found.items()}


def _texts(trial: ForecastSubject) -> Parts:
    shape, cfg = trial.shape, trial.config.sft
    positions = cfg.max_tokens * text_rows(cfg.batch_size, cfg.max_tokens, shape.vocab, trial.on_card)
    if not cfg.steps:  # held-out texts are only measured
        return {"logits": positions * shape.vocab * 11.0, COPIES: 2.0 * shape.head_map * trial.on_card}
    return {
        **_fitting(trial, shape, shape.parameters, positions),
        "logits": positions * shape.vocab * (22.0 if trial.on_card else 20.0) + 4.0 * shape.head_map,
        COPIES: 2.0 * (shape.maps + shape.head_map) * trial.on_card,
    }


def _learned_rewards(trial: ForecastSubject) -> Iterator[Parts]:
    """Training each learned reward while the others are in memory."""
    shape, cfg = trial.reward_shape, trial.config.reward.learned
    for part in trial.config.reward.trained().values():
        # Sorted by length: little of a batch is padding.
        tokens = int(trial.episode) + 1 if is_judged(part.preferences) else cfg.max_tokens
        rows = cfg.ranked * ranking_rows(cfg.rankings_in_step, cfg.ranked, tokens, trial.on_card)
        yield _fitting(trial, shape, shape.trunk, rows * tokens)


def _fitting(trial: ForecastSubject, shape: Shape, parameters: int, positions: int) -> Parts:
    """Training all weights of a network, so many positions at once."""
    return {
        "gradients": 4.0 * parameters,
        "optimiser": 8.0 * parameters,
        "activations": positions * _kept(trial, shape),
        COPIES: 2.0 * shape.maps * trial.on_card,
    }


def _train(trial: ForecastSubject) -> Iterator[Parts]:
    shape, cfg, own = trial.shape, trial.config, 4.0 * trial.shape.parameters
    policy, critic, natural = trial.policy.parameters, trial.critic.parameters, cfg.algorithm.trust_region == "trpo"
    lora, rollout = cfg.adapter.kind == "lora", value_at(cfg, "rollout")
    held = (_held(shape, cfg.critic.held) - own + 4.0 * shape.trunk) * cfg.critic.has_adapter
    lasting = {
        "policy": _held(shape, cfg.adapter.quantize) + 4.0 * policy * lora,
        "gradients": 4.0 * (policy + critic),
        "optimiser": 8.0 * (critic if natural else policy + critic),
        # Gradient, solution, residual, direction and product of conjugate gradients, and the parts of a product.
        "natural step": 4.0 * 5 * policy * natural,
        "critic": 4.0 * critic + held,
        "reference": own * (not lora),
        "policy at the start of the round": own * (cfg.rounds > 1),
        "policy that samples": own * rollout.acts * (1.0 if rollout.dtype == "training" else 0.5),
        "reward": 4.0 * trial.reward_parameters,
    }
    sampling = _sampling(trial, static=trial.on_card) | {COPIES: 2.0 * (shape.maps + shape.head_map) * trial.on_card}
    measuring = _measuring(trial, *_at_once(trial)) | {COPIES: _copies(trial) * trial.policy.head}
    for phase in (_gradient_step(trial), sampling, measuring):
        yield {**lasting, **phase}


def _gradient_step(trial: ForecastSubject) -> Parts:
    shape, cfg, runtime = trial.shape, trial.config, trial.config.runtime
    rows = min(runtime.micro_batch_size, cfg.train.mini_batch_size)
    entries = chunk_tokens(shape.vocab, trial.on_card) * shape.vocab
    kept = _kept(trial, shape) * (1 + (cfg.critic.kind == "separate"))
    return {
        "activations": rows * (trial.longest_prompt + trial.learned_response - 1) * kept,
        # fp32 logits, log-softmax and softmax; on a card their half-precision gradient, too; the gradient of the head.
        "logits": entries * (14.0 if trial.on_card else 12.0) + 4.0 * shape.head_map * trial.policy.head,
        COPIES: _copies(trial),
    }


def _copies(trial: ForecastSubject) -> float:
    """Half-precision copies of trained weights, which autocast keeps, and of the frozen ones below them, which it keeps
    until the backward of their block: with recomputation, one block at a time."""
    shape, cfg, again = trial.shape, trial.config, trial.config.runtime.gradient_checkpointing
    networks = [(cfg.adapter.quantize != "none", cfg.adapter.kind == "lora")]  # in few bits, frozen
    if cfg.critic.kind == "separate":
        networks.append((cfg.critic.held != "none", cfg.critic.has_adapter))
    trunks = sum(1 / shape.layers if few or (is_frozen and again) else 1.0 for few, is_frozen in networks)
    return 2.0 * (shape.maps * trunks + shape.head_map) * trial.on_card


def _at_once(trial: ForecastSubject) -> tuple[int, float]:
    """Episodes at once without gradients, and their positions."""
    rows = min(trial.config.runtime.rollout_batch_size, trial.config.train.batch_size)
    return rows, trial.longest_prompt + trial.config.train.response_length - 1


def _sampling(trial: ForecastSubject, static: bool = False) -> Parts:
    shape, (rows, length) = trial.shape, _at_once(trial)
    # The eager sampler copies a layer's to make room for one position more, and has keys in fp32.
    width = 2.0 if static else (3.0 if trial.on_card else 4.0) * (1 + 1 / shape.layers)
    return {"cache": rows * length * shape.kv * width, "logits": rows * shape.vocab * 12.0}


def _measuring(trial: ForecastSubject, rows: int, length: float) -> Parts:
    """Measuring log-probs: one block's activations, and a chunk of logits."""
    shape, half = trial.shape, trial.on_card
    together, entries = rows if half else min(rows, BUCKET), chunk_tokens(shape.vocab, half) * shape.vocab
    return {"activations": together * length * KEPT_BYTES[half] * shape.ports / shape.layers, "logits": entries * 20.0}


def _held(shape: Shape, how: str) -> float:
    """Bytes of a frozen network, its linear maps in few bits."""
    return 4.0 * shape.parameters - shape.maps * (4.0 - FROZEN_BYTES[how])


def _kept(trial: ForecastSubject, shape: Shape) -> float:
    """Bytes per position that a forward keeps for its backward where every weight is trained."""
    kept, recomputed = KEPT_BYTES[trial.on_card] * shape.ports, trial.config.runtime.gradient_checkpointing
    return 4.0 * shape.hidden * shape.layers + kept / shape.layers if recomputed else kept
