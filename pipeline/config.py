"""The configuration of one trial: frozen sections, unknown keys are errors.

A profile (``pipeline/profiles/*.yaml``) is a complete `TrialConfig`; studies and ``--set`` change single
dotted keys of it. Every key that can change a result is part of some stage's identity (`pipeline.dag`);
what cannot (device, micro-batches, cadence of checkpoints) lives in ``runtime`` and is part of none. ``caps`` end a trial early
and are part of none either: a trial that has reached one goes on when it is raised.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from pipeline.config_base import Fraction, NonNegative
from pipeline.config_base import Positive as Positive
from pipeline.config_base import Section as Section
from pipeline.config_base import StrictlyPositive as StrictlyPositive
from pipeline.config_effects import inert as inert
from pipeline.config_effects import value_at as value_at
from pipeline.config_faults import Fault as Fault
from pipeline.config_faults import unknown_key as unknown_key
from pipeline.config_faults import validate as validate
from pipeline.config_faults import validated as validated
from pipeline.config_rewards import JudgeConfig as JudgeConfig
from pipeline.config_rewards import RewardConfig as RewardConfig
from pipeline.config_words import nearest as nearest
from pipeline.errors import UserError
from pipeline.yaml_files import read_yaml as read_yaml

PROFILES = Path(__file__).parent / "profiles"
CONFIG_FOR_HASH = "pipeline.config/1"
COMMIT = re.compile(r"[0-9a-f]{40}")
KL_ERROR_CLIP = 0.2
"""Adaptive beta: the largest relative error of the KL that one rollout may report (Ziegler 2019)."""
MAPPINGS = ("reward.parts",)
"""Keys whose values are mappings with names of the user's: single entries of them can be changed too."""


class DataConfig(Section):
    """Where texts come from and how they become prompts."""

    source: Literal["builtin", "local", "hub"] = Field("builtin", description="our grammar, a local file or folder, or a hub data set")
    path: str | None = Field(None, description="local: file or folder of parquet, CSV or JSONL with `text,label`")
    name: str | None = Field(None, description="hub: id of the data set")
    revision: str | None = Field(None, description="hub: commit of the data set, 40 hexadecimal digits")
    sft_texts: Positive = Field(20_000, description="texts for supervised fine-tuning")
    train_prompts: Positive = Field(4_096, description="prompts for reward modelling and PPO")
    heldout_prompts: Positive = Field(
        1_024, description="prompts for evaluation, from held-out texts; none is a training prompt; a search needs twice evaluate.prompts"
    )
    prompt_length: tuple[Positive, Positive] = Field((3, 8), description="a prompt is the first k units of a text, k uniform in this range")
    prompt_unit: Literal["words", "tokens"] = Field("words", description="tokens are the policy's")
    max_prompt_tokens: Positive = Field(128, description="longer prompts are passed over: one of them would widen its whole batch")
    vocab_size: Positive = Field(700, description="size of the BPE vocabulary, when the tokenizer is trained here")
    seed: int = Field(0, description="of the texts and of their split into prompts")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.prompt_length[0] > self.prompt_length[1]:
            raise ValueError(f"prompt_length: the range {list(self.prompt_length)} is empty; give [smallest, largest]")
        if self.prompt_unit == "tokens" and self.prompt_length[1] > self.max_prompt_tokens:
            raise ValueError(
                f"prompt_length {list(self.prompt_length)} goes beyond max_prompt_tokens {self.max_prompt_tokens}; raise the latter"
            )
        if self.source == "local" and not self.path:
            raise ValueError("source is 'local' but path is not set; set data.path to a file or folder with columns text,label")
        if self.source == "hub" and not self.name:
            raise ValueError("source is 'hub' but name is not set; set data.name, for example stanfordnlp/imdb")
        if self.source == "hub" and not COMMIT.fullmatch(self.revision or ""):
            raise ValueError(f"revision {self.revision!r} does not pin '{self.name}': set data.revision to a commit, 40 hexadecimal digits")
        return self


class ModelConfig(Section):
    """The policy's network: a pretrained base, or a Qwen2-architecture model from scratch."""

    base: str | None = Field(None, description="hub id or local folder; none builds a scratch Qwen2 of the sizes below")
    revision: str | None = Field(None, description="pinned commit of the base")
    hidden_size: Positive = Field(96, description="width of a scratch model")
    layers: Positive = Field(2, description="layers of a scratch model")
    heads: Positive = Field(4, description="attention heads of a scratch model")
    intermediate_size: Positive = Field(256, description="width of its gated MLP")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        return self


class SftConfig(Section):
    """Supervised fine-tuning that makes the reference snapshot."""

    steps: Annotated[int, Field(ge=0)] = Field(400, description="gradient steps; 0 leaves the base as it is")
    batch_size: Positive = Field(64, description="texts in one step")
    max_tokens: Annotated[int, Field(ge=2)] = Field(64, description="texts are cut to this many tokens")
    lr: StrictlyPositive = Field(3e-3, description="peak learning rate")
    warmup: Fraction = Field(0.05, description="fraction of the steps with rising learning rate; cosine to 10 % after")
    weight_decay: NonNegative = Field(0.01, description="of AdamW")
    seed: int = Field(0, description="of initialisation and of the order of texts")


class StopRule(Section):
    """A condition on a series that ends the trial as `pruned`: ``metric op threshold``, so many records in a row."""

    metric: str
    op: Literal[">", ">=", "<", "<="]
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    consecutive: Positive = 1
    before_step: Positive | None = Field(None, description="records with step < before_step count; none: all")


class PpoConfig(Section):
    """Proximal policy optimisation. Field names are those of the field (see PPO references in pipeline/ppo)."""

    seed: int = Field(0, description="of initialisation, prompt order and sampling; studies set it")
    steps: Positive = Field(2_048, description="gradient steps in all; a whole number of updates")
    batch_size: Positive = Field(64, description="episodes in one rollout")
    num_mini_batches: Positive = Field(4, description="optimiser steps per epoch over the rollout")
    num_ppo_epochs: Positive = Field(4, description="passes over one rollout")
    response_length: Positive = Field(32, description="most tokens in a response")
    temperature: StrictlyPositive = Field(1.0, description="of sampling; all log-probabilities are at it")
    lr: NonNegative = Field(1e-4, description="learning rate of the policy's trunk")
    value_head_lr: NonNegative | None = Field(None, description="learning rate of the value head, on the same schedule; none: lr")
    lr_schedule: Literal["linear", "constant"] = Field("linear", description="linear falls to 0 at the last step")
    adam_eps: StrictlyPositive = Field(1e-5, description="of Adam")
    max_grad_norm: StrictlyPositive = Field(1.0, description="gradients are scaled down to this global norm")
    clip_norms: Literal["apart", "together"] = Field(
        "apart", description="of a separate critic; apart: max_grad_norm holds for policy and critic each; together: for both as one"
    )
    cliprange: StrictlyPositive = Field(0.2, description="epsilon")
    dual_clip: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = Field(
        None, description="bound c on the loss of a negative advantage, at c times its size; none: no bound"
    )
    cliprange_value: StrictlyPositive = Field(
        0.2, description="how far a value may move from that of the rollout before its error is clipped"
    )
    gamma: Fraction = Field(1.0, description="discount per token")
    gae_lambda: Fraction = Field(0.95, description="lambda")
    kl_coef: NonNegative = Field(0.05, description="beta; the starting value when kl_control is not fixed")
    vf_coef: NonNegative = Field(
        0.1, description="c1, of half the squared error: where a recipe's c1 multiplies the squared error itself, give twice its value"
    )
    ent_coef: NonNegative = Field(0.0, description="entropy bonus in the loss")
    whiten_rewards: bool = Field(False, description="scale the rewards of a rollout to variance 1; their mean stays")
    whiten_advantages: bool = Field(True, description="scale the advantages of a rollout to mean 0 and variance 1")
    missing_eos: Literal["replace", "subtract", "none"] = Field(
        "replace", description="what a response without EOS gets instead of its score"
    )
    missing_eos_penalty: NonNegative = Field(1.0, description="replace: score is minus this; subtract: this is subtracted")
    kl_in: Literal["reward", "loss"] = Field(
        "reward",
        description="where the KL penalty acts: on every token's reward, or in the loss; "
        "whitening divides a beta in the reward by objective/advantage_std, and a beta in the loss by nothing",
    )
    kl_loss_estimator: Literal["k2", "k3"] = Field("k2", description="estimator of the penalty in the loss; k1 has no gradient on average")
    kl_control: Literal["fixed", "adaptive", "linear", "cosine", "piecewise"] = Field(
        "fixed", description="adaptive follows kl_target; linear and cosine go to kl_coef_end; piecewise follows kl_coef_stages"
    )
    kl_coef_end: NonNegative = Field(0.0, description="linear and cosine: beta of the last update")
    kl_coef_stages: tuple[tuple[Fraction, NonNegative], ...] = Field(
        (), description="piecewise: pairs [from this fraction of the trial on, beta]"
    )
    kl_target: StrictlyPositive = Field(6.0, description="adaptive beta: target in nats per sequence")
    kl_horizon: StrictlyPositive = Field(10_000, description="adaptive beta: horizon in episodes")
    lr_guard: bool = Field(False, description="cut the learning rate while KL per token is above lr_guard_kl")
    lr_guard_kl: StrictlyPositive = Field(0.015, description="nats per token")
    lr_guard_factor: Fraction = Field(0.5, description="what a cut multiplies the learning rate by")
    lr_guard_steps: Positive = Field(100, description="gradient steps that a cut lasts")
    kl_hinge: StrictlyPositive | None = Field(
        None, description="nats per token: while a mini-batch's KL to the reference is above it, its step shrinks to kl_hinge / KL"
    )
    target_kl: StrictlyPositive | None = Field(
        None, description="nats per token: the epochs end before a step whose approxkl is above 1.5 times this"
    )
    critic: Literal["shared", "separate"] = Field(
        "shared", description="shared: value head on the policy's trunk; separate: a trunk of its own"
    )
    critic_init: Literal["reference", "reward"] = Field("reference", description="what a separate critic starts as")
    critic_lr: NonNegative | None = Field(None, description="learning rate of a separate critic's trunk, on the same schedule; none: lr")
    adapter: Literal["none", "lora"] = Field("none", description="lora: train a low-rank adapter; the reference is then the same network")
    lora_rank: Positive = Field(16, description="width of the adapter")
    lora_alpha: StrictlyPositive = Field(32.0, description="the adapter counts alpha / rank times")
    quantize: Literal["none", "4bit"] = Field("none", description="4bit: hold the frozen weights in NF4; needs adapter: lora and a GPU")
    frozen_layers: Annotated[int, Field(ge=0)] = Field(0, description="lowest blocks that are not trained, embeddings included")
    min_entropy: NonNegative = Field(0.01, description="nats per token: a rollout below it has collapsed, and the trial ends as diverged")
    max_repetition: Fraction = Field(0.8, description="share of repeated token pairs in a response: a rollout above it has collapsed too")
    stop: tuple[StopRule, ...] = Field((), description="what ends the trial early; set by a study's falsifiers and its search")

    @property
    def mini_batch_size(self) -> int:
        """Episodes in one optimiser step."""
        return self.batch_size // self.num_mini_batches

    @property
    def steps_per_update(self) -> int:
        """Optimiser steps in one update."""
        return self.num_ppo_epochs * self.num_mini_batches

    @property
    def updates(self) -> int:
        """Rollouts in a trial."""
        return self.steps // self.steps_per_update

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.batch_size % self.num_mini_batches:
            raise ValueError(f"batch_size {self.batch_size} is no multiple of num_mini_batches {self.num_mini_batches}")
        if self.steps % self.steps_per_update:
            below = self.steps // self.steps_per_update * self.steps_per_update
            raise ValueError(
                f"steps {self.steps} is no whole number of updates of {self.steps_per_update} gradient steps "
                f"(num_ppo_epochs x num_mini_batches); nearest: {max(below, self.steps_per_update)} or {below + self.steps_per_update}"
            )
        if self.quantize != "none" and self.adapter != "lora":
            raise ValueError("quantize '4bit' holds frozen weights, and without an adapter none is frozen; set adapter: lora")
        if self.adapter == "lora" and self.frozen_layers:
            raise ValueError("frozen_layers and adapter: lora exclude each other; an adapter freezes every layer already")
        self._check_stages()
        least = KL_ERROR_CLIP * self.batch_size
        if self.kl_control == "adaptive" and self.kl_horizon <= least:
            raise ValueError(f"kl_horizon {self.kl_horizon:g} lets one rollout take beta to 0 or below; above 0.2 x batch_size = {least:g}")
        return self

    def _check_stages(self) -> None:
        starts = [start for start, _ in self.kl_coef_stages]
        if bool(starts) != (self.kl_control == "piecewise"):
            raise ValueError(
                "kl_coef_stages and kl_control: piecewise need each other; for example kl_coef_stages: [[0.25, 0.1], [0.5, 0.05]]"
            )
        if any(late <= early for early, late in itertools.pairwise(starts)):
            raise ValueError(f"kl_coef_stages: the fractions {starts} must rise")


class EvaluateConfig(Section):
    """Held-out evaluation: one answer of the policy against several of the reference, by independent noise."""

    prompts: Positive = Field(512, description="held-out prompts that are answered")
    first_prompt: Annotated[int, Field(ge=0)] = Field(
        0, description="held-out prompts before the first one that is answered; the confirmation of a search passes over those it used"
    )
    # Measured on `tiny` (512 prompts, beta 0.05, 512 steps): with k = 1, 2, 4, 8, 16 the standard error of the win rate is 2.0, 1.7, 1.5,
    # 1.4, 1.3 points (1.3 is what the prompts and the policy's own draws leave), that of the reference's gold score 0.114, 0.083, 0.059,
    # 0.044, 0.033 points. A draw costs a quarter of what a policy's evaluation costs, and all trials share it.
    reference_draws: Positive = Field(8, description="answers of the reference to each prompt, drawn once for all trials")
    temperature: StrictlyPositive = Field(1.0, description="of sampling, for both networks")
    sample_rows: Positive = Field(16, description="prompts in the fixed sample table")
    seed: int = Field(0, description="of the sampling noise, which differs between policy and reference and is the same for every arm")


class RuntimeConfig(Section):
    """How a trial runs: changes no result and is part of no stage's identity.

    The exception is the numeric precision, which follows from the device and is part of the identity by itself (`pipeline.dag`).
    """

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU where there is one")
    threads: Positive = Field(1, description="CPU threads of one process of a trial")
    processes: Positive = Field(1, description="processes that share the work of one PPO trial, each with its own GPU where there are any")
    micro_batch_size: Positive = Field(64, description="episodes in memory at once during training")
    rollout_batch_size: Positive = Field(512, description="episodes in memory at once during generation and scoring")
    hang_minutes: StrictlyPositive = Field(30.0, description="a trial in a process of its own that says nothing for so long is ended")
    checkpoint_updates: Positive = Field(16, description="fewest updates between two checkpoints")
    checkpoint_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        0.02, description="most of a trial's time that checkpoints take: they are rarer on a slow disk; none: by checkpoint_updates alone"
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice instead of keeping them")


class CapsConfig(Section):
    """What one trial may spend; a trial that reaches a cap ends as `budget`. Part of no stage's identity: a larger cap continues it."""

    wall_clock_h: StrictlyPositive = Field(2.5, description="hours of the PPO stage")
    generated_tokens: Positive = Field(50_000_000, description="tokens sampled in rollouts")
    memory_gib: StrictlyPositive = Field(14.6, description="peak memory: RSS on a CPU, allocator on a GPU, which enforces it")
    card: Literal["auto", "t4"] = Field(
        "auto",
        description="whose roofline is held against wall_clock_h before a trial starts: t4 on any machine; "
        "auto: a T4's, unless another GPU is visible",
    )


class TrialConfig(Section):
    """Everything about one trial."""

    profile: str
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sft: SftConfig = SftConfig()
    reward: RewardConfig = RewardConfig()
    judge: JudgeConfig = JudgeConfig()
    ppo: PpoConfig = PpoConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    caps: CapsConfig = CapsConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def gold(self) -> JudgeConfig:
        """The gold judge with `auto` resolved."""
        if self.judge.kind != "auto":
            return self.judge
        return self.judge.model_copy(update={"kind": "grammar" if self.data.source == "builtin" else "lexicon"})

    @property
    def needs_labels(self) -> bool:
        """Whether some reward is learned from the labels of the texts."""
        return any(part.preferences == "labels" for part in self.reward.scorers().values())

    def cautions(self) -> list[str]:
        """What is allowed and yet likely to mislead, one line each."""
        same = [name for name, part in self.reward.scorers().items() if (part.kind, part.model) == (self.gold.kind, self.gold.model)]
        what = f"'{self.gold.model}'" if self.gold.model else self.gold.kind
        where = ", ".join(f"reward.parts.{name}" for name in same) if self.reward.parts else "reward"
        return [f"the gold judge ({what}) is also what is trained on ({where}): win rates cannot show over-optimisation"] if same else []

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        last = self.evaluate.first_prompt + self.evaluate.prompts
        if last > self.data.heldout_prompts:
            asked = f"evaluate.first_prompt {self.evaluate.first_prompt} + " * bool(self.evaluate.first_prompt)
            raise ValueError(
                f"{asked}evaluate.prompts {self.evaluate.prompts} is more than data.heldout_prompts {self.data.heldout_prompts}; "
                f"raise the latter to at least {last}"
            )
        if self.ppo.mini_batch_size % self.runtime.processes:
            raise ValueError(
                f"runtime.processes {self.runtime.processes} does not divide a mini-batch of {self.ppo.mini_batch_size} episodes "
                "(ppo.batch_size / ppo.num_mini_batches)"
            )
        grammar = [name for name, part in self.reward.scorers().items() if part.kind == "grammar"]
        if (self.gold.kind == "grammar" or grammar) and self.data.source != "builtin":
            key = f"reward.parts.{grammar[0]}" if grammar and self.reward.parts else "reward.kind" if grammar else "judge.kind"
            raise ValueError(
                f"{key} 'grammar' understands only built-in reviews, data.source is '{self.data.source}'; use lexicon or classifier"
            )
        if self.needs_labels and self.data.source == "builtin":
            raise ValueError("preferences 'labels' need labelled texts, data.source is 'builtin'; use judge, or texts of your own")
        if self.ppo.critic == "separate" and self.ppo.critic_init == "reward" and self.reward.kind != "learned":
            raise ValueError(f"ppo.critic_init 'reward' needs a reward that is a network, reward.kind is '{self.reward.kind}'; use learned")
        return self

    def digest(self) -> str:
        """Hash of all that can change a result: sixteen hexadecimal digits."""
        content = self.model_dump(mode="json", exclude={"runtime", "caps", "profile"})
        return hashlib.sha256(canonical_json([CONFIG_FOR_HASH, content]).encode()).hexdigest()[:16]


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, value)`` of nested mappings.

    >>> dict(flatten({"ppo": {"lr": 0.1}, "seed": 1}))
    {'ppo.lr': 0.1, 'seed': 1}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def dotted_keys() -> list[str]:
    """Every key that ``--set`` and a study's arms can name."""
    return [
        f"{section}.{name}"
        for section, info in TrialConfig.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
        for name in info.annotation.model_fields
    ]


def load_config(
    profile: str, overrides: Mapping[str, Any] | None = None, origin: str = "--set", below: Mapping[str, Any] | None = None
) -> TrialConfig:
    """Read a profile and change single keys of it.

    `overrides` maps dotted keys (``ppo.kl_coef``) to values; those of `below` are changed first. Raises `UserError` with
    one line per fault: the key, the value, what is allowed and the nearest right name; `origin` says in these lines
    where the overrides stood.
    """
    config, faults = read_config(profile, overrides or {}, below or {})
    if config is None:
        where = origin if overrides or below else str(PROFILES / f"{profile}.yaml")
        raise UserError("\n".join(f"{where}: {fault.text}" for fault in faults))
    return config


def read_config(profile: str, overrides: Mapping[str, Any], below: Mapping[str, Any]) -> tuple[TrialConfig | None, list[Fault]]:
    """As `load_config`, but gives all faults, each with the key of the override that has it. Raises `UserError` for an unknown profile."""
    names = profile_names()
    if profile not in names:
        raise UserError(f"no profile '{profile}'{nearest(profile, names)}; there are: {', '.join(names)}")
    path = PROFILES / f"{profile}.yaml"
    content: dict[str, Any] = {"profile": profile, **_read_profile(path, path.stat().st_mtime_ns)}
    under, faults = _changed(content, below)
    content, wrong = _changed(under, overrides)
    config, refused = validated(TrialConfig, content)
    faults += [*wrong, *(Fault(_override(fault, {**below, **overrides}), fault.text) for fault in refused)]
    if config is not None:
        faults += _inert(config, under, overrides)
    return (None if faults else config), faults


def _changed(content: dict[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The sections with dotted keys changed, and a fault for each key that cannot be."""
    found, faults = dict(content), []
    for key, value in changes.items():
        try:
            check_key(key)
            section, name, *inner = key.split(".")
            found[section] = {**found.get(section, {}), name: _with(found.get(section, {}).get(name), inner, value, key)}
        except UserError as error:
            faults.append(Fault((key,), str(error)))
    return found, faults


def _inert(config: TrialConfig, under: dict[str, Any], overrides: Mapping[str, Any]) -> list[Fault]:
    """Overrides that have no effect in `config`; those that repeat what is under them are none."""
    idle = {key: why for key in overrides if (why := inert(config, key))}
    base = validated(TrialConfig, under)[0] if idle else None
    return [Fault((key,), why) for key, why in idle.items() if base is None or value_at(base, key) != value_at(config, key)]


def check_key(key: str) -> None:
    """Refuse a key that no configuration has. Below a mapping (``reward.parts.<name>.weight``) it may go on."""
    known = dotted_keys()
    if key not in known and not any(key.startswith(f"{name}.") for name in MAPPINGS):
        raise UserError(unknown_key(key, known))


def _override(fault: Fault, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """The override whose value is at fault; nothing where it is a whole section, or the profile."""
    ways = (".".join(map(str, fault.where[:depth])) for depth in range(len(fault.where), 1, -1))
    return next(((way,) for way in ways if way in changes), ())


def _with(old: Any, inner: list[str], value: Any, key: str) -> Any:
    """`old` with the entry at `inner` replaced; `value` itself where `inner` is empty."""
    if not inner:
        return value
    name, *deeper = inner
    if not isinstance(old, Mapping) or (deeper and name not in old):
        found = list(old) if isinstance(old, Mapping) else []
        raise UserError(f"{key}: there is no '{name}' to change{nearest(name, found)}; there are: {', '.join(found) or 'none'}")
    return {**old, name: _with(old.get(name), deeper, value, key)}


@lru_cache(maxsize=16)
def _read_profile(path: Path, modified_ns: int) -> dict[str, Any]:
    """A profile's content, read once: a large study asks for it once for every cell. Not to be changed by the caller."""
    return read_yaml(path)


def parse_set(assignments: list[str]) -> dict[str, Any]:
    """Turn ``["ppo.kl_coef=0.1"]`` into ``{"ppo.kl_coef": 0.1}``; values are read as YAML.

    >>> parse_set(["ppo.kl_coef=0.1", "data.prompt_length=[3, 5]"])
    {'ppo.kl_coef': 0.1, 'data.prompt_length': [3, 5]}
    """
    result: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set '{text}': write it as section.key=value, for example ppo.kl_coef=0.1")
        try:
            result[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set '{text}': '{value}' is not a YAML value") from None
    return result
