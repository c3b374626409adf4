"""When a knob has an effect: what else must be set for it, in one table.

A setting that cannot act is refused where a user makes it (``--set``, an arm, a search space), because two trials that
differ in it alone would differ in name only. A profile may hold values for switches that are off, so that turning one
on is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.config.names import TRAINING
from pipeline.config.replay import has_replay
from pipeline.config.rewards import LEARNED as LEARNED_KINDS
from pipeline.config.rewards import is_judged

Config = Any
"""A `pipeline.config.trial.TrialConfig`, which is made in the layer above."""


@dataclass(frozen=True)
class Condition:
    """Something that has to hold in the rest of the configuration."""

    words: str
    holds: Callable[[Config], bool]
    switch: str
    """The key whose present value a message shows."""


def setting(key: str, *values: str | bool) -> Condition:
    """The key has one of these values."""
    listed = " or ".join(str(value).lower() for value in values)
    return Condition(f"{key}: {listed}", lambda config: value_at(config, key) in values, key)


def given(key: str) -> Condition:
    """The key is set."""
    return Condition(key, lambda config: value_at(config, key) is not None, key)


def absent(key: str) -> Condition:
    """The key is not set."""
    return Condition(f"no {key}", lambda config: value_at(config, key) is None, key)


def above_zero(key: str) -> Condition:
    """The key is more than 0."""
    return Condition(f"{key} above 0", lambda config: bool(value_at(config, key) > 0), key)


def above_one(key: str) -> Condition:
    """The key is more than 1."""
    return Condition(f"{key} above 1", lambda config: bool(value_at(config, key) > 1), key)


def value_at(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _learned(config: Config) -> list[str]:
    """The sources of pairs of all rewards that are learned."""
    return [part.preferences for part in config.reward.scorers().values() if part.kind in LEARNED_KINDS]


PENALTY = Condition(
    "a KL penalty: kl.beta above 0, or a schedule that goes above 0",
    lambda config: any(config.kl.schedule.values),
    "kl.beta",
)
LEARNED = Condition("a learned reward", lambda config: bool(_learned(config)), "reward.kind")
JUDGED = Condition(
    "a learned reward with preferences: judge",
    lambda config: any(is_judged(source) for source in _learned(config)),
    "reward.kind",
)
GIVEN_PAIRS = Condition(
    "a learned reward with preferences: labels or a file",
    lambda config: any(not is_judged(source) for source in _learned(config)),
    "reward.kind",
)
PAIRWISE = Condition(
    "a reward of kind pairwise",
    lambda config: any(part.kind == "pairwise" for part in config.reward.scorers().values()),
    "reward.kind",
)
TRAINED_CRITIC = Condition(
    "critic.vf_coef above 0 or critic.init: reward (any other critic stays at 0)",
    lambda config: (
        config.critic.vf_coef > 0
        or config.critic.kind == "none"
        or (config.critic.kind == "separate" and config.critic.init == "reward")
    ),
    "critic.vf_coef",
)
TRAINED_OR_SCRATCH = Condition(
    "sft.steps above 0 or no model.base", lambda config: config.sft.steps > 0 or config.model.base is None, "sft.steps"
)
A_BEGINNING = Condition(
    "kl.control other than piecewise, or a first stage that begins after 0",
    lambda config: not config.kl.schedule.begins_at_a_stage,
    "kl.beta_stages",
)
BONUS = Condition(
    "an entropy bonus: entropy.coef above 0, or a schedule that goes above 0",
    lambda config: config.entropy.acts,
    "entropy.coef",
)
A_BEGINNING_OF_THE_BONUS = Condition(
    "entropy.control other than piecewise, or a first stage that begins after 0",
    lambda config: not config.entropy.schedule.begins_at_a_stage,
    "entropy.coef_stages",
)
REPLAY = Condition("algorithm.advantage: replay or critic.target: replay", has_replay, "critic.target")
V_STAR = setting("algorithm.advantage", "v_star")
SAMPLES_USED = Condition(
    "algorithm.advantage: v_star or critic.pretraining_steps above 0",
    lambda config: config.needs_samples,
    "critic.pretraining_steps",
)
ADAM_MOVES_THE_POLICY = Condition(
    "algorithm.trust_region other than trpo",
    lambda config: config.algorithm.trust_region != "trpo",
    "algorithm.trust_region",
)
COMMON_RATE = Condition(
    "algorithm.trust_region other than trpo, or a critic without critic.lr or critic.head_lr",
    lambda config: config.algorithm.trust_region != "trpo" or None in (config.critic.lr, config.critic.head_lr),
    "algorithm.trust_region",
)
ROLLOUTS = setting("train.data", "rollouts")
LEARNS = Condition(
    "an algorithm that takes gradient steps (algorithm.advantage other than none)",
    lambda config: config.algorithm.learns,
    "algorithm.advantage",
)
UNTRAINED = (
    "algorithm.name", "algorithm.advantage", "train.seed", "train.stop", "train.response_length", "train.temperature",
    "adapter.kind", "adapter.quantize",
)  # fmt: skip
"""Keys of the sections of training that act, or are set by a study, where nothing is trained as well. All others of
these sections need `LEARNS` beside what `ACTS` says."""
RANKINGS = Condition("reward.ranked above 2", lambda config: config.reward.ranked > 2, "reward.ranked")
FROZEN_NETWORK = Condition(
    "a network that is not trained: adapter.kind: none (the reference), or a reward that is a network",
    lambda config: (
        config.adapter.kind == "none"
        or any(part.kind in LEARNED_KINDS or part.model is not None for part in config.reward.scorers().values())
    ),
    "adapter.kind",
)
ROUNDS = Condition("reward.rounds above 1", lambda config: config.rounds > 1, "reward.rounds")
TRUNK_LEARNS = Condition(
    "critic.vf_coef or critic.pretraining_steps above 0",
    lambda config: config.critic.vf_coef > 0 or config.critic.pretraining_steps > 0,
    "critic.vf_coef",
)
CRITIC = setting("critic.kind", "shared", "separate")
SCRATCH = absent("model.base")
SEPARATE = setting("critic.kind", "separate")
SFT = Condition(
    "sft.steps above 0, or a scratch trunk of the reward that learns the texts",
    lambda config: config.sft.steps > 0 or config.reward_pretraining is not None,
    "sft.steps",
)
GROUPED = setting("kl.place", "reward", "loss")
TEXTS_THERE = Condition(
    "data.heldout_prompts to be at least evaluate.texts",
    lambda config: config.evaluate.texts <= config.data.heldout_prompts,
    "data.heldout_prompts",
)

ACTS: dict[str, tuple[Condition, ...]] = {
    "data.path": (setting("data.source", "local"),),
    "data.name": (setting("data.source", "hub"),),
    "data.revision": (setting("data.source", "hub"),),
    "data.insults": (setting("data.source", "builtin"),),
    "data.vocab_size": (SCRATCH,),
    "model.revision": (given("model.base"),),
    **dict.fromkeys(("model.hidden_size", "model.layers", "model.heads", "model.intermediate_size"), (SCRATCH,)),
    **dict.fromkeys(("sft.batch_size", "sft.lr", "sft.warmup", "sft.weight_decay"), (SFT,)),
    "sft.seed": (TRAINED_OR_SCRATCH,),
    **dict.fromkeys(
        (
            "reward.pairs",
            "reward.ranked",
            "reward.heldout_pairs",
            "reward.pairs_seed",
            "reward.epochs",
            "reward.batch_size",
            "reward.lr",
        ),
        (LEARNED,),
    ),
    "reward.ranking_loss": (RANKINGS, LEARNED),
    "reward.label_noise": (JUDGED,),
    **dict.fromkeys(("reward.trunk", "reward.ensemble"), (LEARNED,)),
    **dict.fromkeys(
        (
            "reward.hidden_size",
            "reward.layers",
            "reward.heads",
            "reward.intermediate_size",
            "reward.pretraining_steps",
        ),
        (setting("reward.trunk", "scratch"), LEARNED),
    ),
    "reward.combine": (above_one("reward.ensemble"), LEARNED),
    "reward.worst_k": (setting("reward.combine", "worst_k"), LEARNED),
    "reward.uncertainty_weight": (setting("reward.combine", "uncertainty"), above_one("reward.ensemble"), LEARNED),
    "reward.rounds": (JUDGED, LEARNS),
    "reward.keep_pairs": (ROUNDS,),
    "reward.max_tokens": (GIVEN_PAIRS,),
    "reward.opponents": (setting("reward.against", "reference", "policy"),),
    "reward.dimension": (PAIRWISE,),
    "critic.head_lr": (CRITIC, above_zero("critic.vf_coef")),
    "algorithm.value_lambda": (CRITIC, above_zero("critic.vf_coef")),
    "critic.warmup_steps": (CRITIC, above_zero("critic.vf_coef"), ADAM_MOVES_THE_POLICY),
    "critic.target": (CRITIC, above_zero("critic.vf_coef")),
    **dict.fromkeys(("replay.continuations", "replay.every", "replay.share"), (REPLAY,)),
    "critic.cliprange": (CRITIC, above_zero("critic.vf_coef")),
    "algorithm.gamma": (setting("algorithm.advantage", "gae", "reinforce_pp"),),
    "algorithm.gae_lambda": (setting("algorithm.advantage", "gae", "replay"),),
    "algorithm.whiten_rewards": (setting("algorithm.advantage", "gae"),),
    **dict.fromkeys(
        ("algorithm.cliprange", "algorithm.cliprange_high", "algorithm.dual_clip"),
        (setting("algorithm.trust_region", "clip"),),
    ),
    "algorithm.ratio_cap": (setting("algorithm.trust_region", "cispo"),),
    **dict.fromkeys(
        ("algorithm.old_kl_coef", "algorithm.old_kl_target"), (setting("algorithm.trust_region", "kl_penalty"),)
    ),
    **dict.fromkeys(
        (
            "algorithm.trpo_delta",
            "algorithm.trpo_damping",
            "algorithm.trpo_cg_iterations",
            "algorithm.trpo_line_search",
        ),
        (setting("algorithm.trust_region", "trpo"),),
    ),
    **dict.fromkeys(("algorithm.target_kl", "kl.hinge", "optimiser.guard"), (ADAM_MOVES_THE_POLICY,)),
    "optimiser.lr": (COMMON_RATE,),
    "critic.vf_coef": (CRITIC,),
    "critic.kind": (TRAINED_CRITIC,),
    "critic.init": (SEPARATE,),
    "critic.lr": (SEPARATE, above_zero("critic.vf_coef")),
    "critic.adapter": (SEPARATE,),
    "critic.quantize": (SEPARATE, setting("critic.adapter", "lora")),
    **dict.fromkeys(
        ("critic.adapter_rank", "critic.adapter_alpha"), (SEPARATE, setting("critic.adapter", "lora"), TRUNK_LEARNS)
    ),
    "optimiser.clip_norms": (SEPARATE, above_zero("critic.vf_coef"), ADAM_MOVES_THE_POLICY),
    **dict.fromkeys(("algorithm.v_star_beta", "algorithm.v_star_samples"), (V_STAR,)),
    **dict.fromkeys(("values.samples", "values.seed"), (SAMPLES_USED,)),
    "critic.pretraining_steps": (CRITIC,),
    "critic.pretraining_lr": (CRITIC, above_zero("critic.pretraining_steps")),
    **dict.fromkeys(("train.missing_eos", "train.overlong_share"), (ROLLOUTS,)),
    "train.missing_eos_penalty": (setting("train.missing_eos", "replace", "subtract"), ROLLOUTS),
    "kl.beta": (A_BEGINNING,),
    "train.overlong_penalty": (above_zero("train.overlong_share"), ROLLOUTS),
    "kl.place": (PENALTY,),
    "kl.reward_estimator": (setting("kl.place", "reward", "score"), PENALTY),
    "kl.loss_estimator": (setting("kl.place", "loss"), PENALTY),
    "kl.group": (GROUPED, PENALTY),
    "kl.group_credit": (setting("kl.group", "clause", "sentence", "sequence"), GROUPED, PENALTY),
    "kl.control": (PENALTY,),
    "kl.beta_end": (setting("kl.control", "linear", "cosine"),),
    "kl.target": (setting("kl.control", "adaptive"), PENALTY),
    "kl.horizon": (setting("kl.control", "adaptive"), PENALTY),
    **dict.fromkeys(("floor.at", "floor.lr", "floor.weight", "floor.max_weight"), (given("floor.part"),)),
    "entropy.coef": (A_BEGINNING_OF_THE_BONUS,),
    "entropy.control": (BONUS,),
    "entropy.coef_end": (setting("entropy.control", "linear", "cosine"),),
    "entropy.target": (setting("entropy.control", "adaptive"),),
    "entropy.horizon": (setting("entropy.control", "adaptive"),),
    **dict.fromkeys(
        ("optimiser.guard_kl", "optimiser.guard_factor", "optimiser.guard_steps"),
        (setting("optimiser.guard", True), ADAM_MOVES_THE_POLICY),
    ),
    "evaluate.texts": (TEXTS_THERE,),
    "train.frozen_dtype": (FROZEN_NETWORK,),
    "runtime.offload_reference": (setting("runtime.device", "auto", "cuda"), setting("adapter.kind", "none"), LEARNS),
    "adapter.rank": (setting("adapter.kind", "lora"),),
    "adapter.alpha": (setting("adapter.kind", "lora"),),
}
"""Knobs that act only under conditions, all of which must hold. What is not listed always acts, or is refused by
itself."""


def inert(config: Config, key: str) -> str | None:
    """Why a setting has no effect in this configuration; None where it has one."""
    trained = key.partition(".")[0] in TRAINING and key not in UNTRAINED
    for condition in (*([LEARNS] * trained), *ACTS.get(key, ())):
        if not condition.holds(config):
            made = f"{key} = {_word(value_at(config, key))}"
            now = f"{condition.switch} is {_word(value_at(config, condition.switch))}"
            return f"{made} has no effect while {now}: it needs {condition.words}; change that, or leave {key} out"
    return None


def needs(key: str) -> str:
    """What a knob needs to act, in words; empty for one that always acts."""
    return " and ".join(condition.words for condition in ACTS.get(key, ()))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
