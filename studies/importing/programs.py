"""What other programs log: their names, what they mean here, and what their x-axis counts.

A row of a table is taken from the source that its program names. A key whose meaning depends on a setting that the
log does not hold is not taken; its reason says which line of a mapping file takes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Counts = Literal["updates", "episodes", "gradient_steps"]
PREFIX = "train/"
"""What trackers put before the names that a trainer logs."""


@dataclass(frozen=True)
class Meaning:
    """One of our metrics: ``(theirs - subtract) x factor``, in our unit."""

    metric: str
    subtract: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True)
class Program:
    """One program's log."""

    name: str
    source: str
    """Version and files that the names were read from."""
    signs: tuple[str, ...]
    """Patterns of keys that no other program logs; one of them identifies it."""
    axis: Mapping[str, Counts]
    """Keys of the x-axis, the first that is there, and what it counts."""
    names: Mapping[str, Meaning]
    """Theirs -> ours; of two keys of one metric the first is taken."""
    ignored: Mapping[str, str]
    """Pattern of keys -> why they are not taken."""
    per: int | None = None
    """Gradient steps between two rollouts where the log does not say."""


def bare(key: str) -> str:
    """A key without a tracker's prefix."""
    return key.removeprefix(PREFIX)


def _same(metric: str) -> Meaning:
    return Meaning(metric)


def _complement(metric: str) -> Meaning:
    return Meaning(metric, subtract=1.0, factor=-1.0)


_NONE = "no metric of ours"
_HF = {
    "epoch": "the place in the data",
    "num_tokens": _NONE,
    "num_input_tokens_seen": _NONE,
    "step_time": "seconds",
    "*runtime": "seconds",
    "*_per_second": "speed",
    "total_flos": _NONE,
    "train_loss": "the mean over the whole run",
}
_TRL_PPO = Program(
    "trl-ppo",
    "TRL 1.12, trl/experimental/ppo/ppo_trainer.py (1.16 no longer has it)",
    ("policy/*_avg", "loss/*_avg", "val/clipfrac_avg", "val/ratio", "val/num_eos_tokens"),
    {"step": "updates", "global_step": "updates", "episode": "episodes"},
    {
        "objective/kl": _same("objective/kl"),
        "objective/entropy": _same("objective/entropy"),
        "objective/non_score_reward": _same("objective/non_score_reward"),
        "objective/rlhf_reward": _same("objective/rlhf_reward"),
        "objective/scores": _same("objective/scores"),
        "policy/approxkl_avg": _same("policy/approxkl"),
        "policy/clipfrac_avg": _same("policy/pg_clipfrac"),
        "policy/entropy_avg": _same("policy/entropy"),
        "loss/policy_avg": _same("policy/pg_loss"),
        "loss/value_avg": _same("value/vf_loss"),
        "val/clipfrac_avg": _same("value/vf_clipfrac"),
        "val/ratio": _same("policy/ratio"),
        "lr": _same("policy/lr"),
    },
    {**_HF, "eps": "episodes per second", "val/ratio_var": _NONE, "val/num_eos_tokens": _NONE},
)
_TRL_GROUPS = {
    "reward": _same("objective/scores"),
    "reward_std": _same("objective/scores_std"),
    "entropy": _same("policy/entropy"),
    "clip_ratio/region_mean": _same("policy/pg_clipfrac"),
    "completions/mean_length": _same("objective/length"),
    "completions/clipped_ratio": _complement("objective/eos_rate"),
    "learning_rate": _same("policy/lr"),
    "grad_norm": _same("policy/grad_norm"),
    "eval_reward": _same("eval/proxy"),
    "eval_entropy": _same("eval/entropy"),
    "eval_completions/mean_length": _same("eval/length"),
    "eval_completions/clipped_ratio": _complement("eval/eos_rate"),
}
"""Logged by GRPO and RLOO alike."""
_TRL_GROUPS_IGNORED = {
    **_HF,
    "frac_reward_zero_std": _NONE,
    "rewards/*/std": "the spread of one reward function",
    "clip_ratio/*": "clip_ratio/region_mean is both sides together",
    "completions/*": "completions/mean_length is over all completions",
    "eval_kl": "an estimate, where the metrics of an evaluation are exact",
    "eval_*": _NONE,
    "tools/*": _NONE,
    "sampling/*": "the trainer against its inference engine",
    "aux_loss": "the load balance of a mixture of experts",
}
_TRL_GROUP_SIGNS = ("frac_reward_zero_std", "clip_ratio/*", "completions/*")
_TRL_STEPS: dict[str, Counts] = {"step": "gradient_steps", "global_step": "gradient_steps"}
_TRL_GRPO = Program(
    "trl-grpo",
    "TRL 1.16, trl/trainer/grpo_trainer.py",
    _TRL_GROUP_SIGNS,
    _TRL_STEPS,
    {**_TRL_GROUPS, "kl": _same("objective/kl_k3_per_token")},
    {
        **_TRL_GROUPS_IGNORED,
        "loss": "policy loss and KL penalty in one number; with beta 0 write policy/pg_loss: loss",
        "policy_loss": "policy loss and KL penalty in one number; with beta 0 write policy/pg_loss: policy_loss",
        "entropy_coef": _NONE,
        "cispo_clip_ratio": "one side of the clipping alone",
        "vespo/*": _NONE,
    },
    per=1,
)
_TRL_RLOO = Program(
    "trl-rloo",
    "TRL 1.16, trl/trainer/rloo_trainer.py",
    _TRL_GROUP_SIGNS,
    _TRL_STEPS,
    {**_TRL_GROUPS, "kl": _same("objective/kl_per_token"), "loss": _same("policy/pg_loss")},
    _TRL_GROUPS_IGNORED,
    per=1,
)
_WHICH = "give --program trl-grpo or trl-rloo, or say it per arm in the mapping"
_EITHER = Program(
    "trl-grpo or trl-rloo",
    f"{_TRL_GRPO.source} and rloo_trainer.py",
    _TRL_GROUP_SIGNS,
    _TRL_STEPS,
    _TRL_GROUPS,
    {
        **_TRL_GROUPS_IGNORED,
        "kl": f"GRPO logs the k3 estimator under this name, RLOO k1; {_WHICH}",
        "loss": f"the loss of GRPO holds the KL penalty, that of RLOO does not; {_WHICH}",
    },
    per=1,
)
_GRPO_ONLY = ("policy_loss", "entropy_coef", "cispo_clip_ratio", "vespo/*", "sampling/*", "tools/*")
_SUMMED = (
    "the FSDP actor sums it over the gradient steps of an update; with N of them write {metric}: {{key: {key},"
    " factor: 1/N as a number}}"
)
_VERL = Program(
    "verl",
    "verl 0.8.0.dev (b178a3cd), trainer/ppo/metric_utils.py and ray_trainer.py, workers/actor/dp_actor.py,"
    " workers/critic/dp_critic.py, utils/tracking.py",
    ("actor/*", "critic/*", "timing_s/*", "perf/*", "response_length/*"),
    {"step": "updates", "training/global_step": "updates", "_step": "updates"},
    {
        "critic/score/mean": _same("objective/scores"),
        "critic/rewards/mean": _same("objective/rlhf_reward"),
        "actor/reward_kl_penalty": _same("objective/kl_per_token"),
        "actor/reward_kl_penalty_coeff": _same("objective/kl_coef"),
        "actor/entropy": _same("policy/entropy"),
        "actor/pg_clipfrac": _same("policy/pg_clipfrac"),
        "actor/pg_clipfrac_lower": _same("policy/dual_clipfrac"),
        "actor/grad_norm": _same("policy/grad_norm"),
        "actor/lr": _same("policy/lr"),
        "critic/vf_clipfrac": _same("value/vf_clipfrac"),
        "critic/vf_explained_var": _same("value/explained_variance"),
        "critic/grad_norm": _same("value/grad_norm"),
        "response_length/mean": _same("objective/length"),
    },
    {
        "actor/kl_loss": _SUMMED.format(metric="objective/kl_k3_per_token", key="actor/kl_loss"),
        "actor/pg_loss": _SUMMED.format(metric="policy/pg_loss", key="actor/pg_loss"),
        "critic/vf_loss": _SUMMED.format(metric="value/vf_loss", key="critic/vf_loss"),
        "actor/kl_coef": "the weight of a penalty in the loss; write objective/kl_coef: actor/kl_coef",
        "actor/ppo_kl": "k1 of the new against the behaviour policy, where policy/approxkl is k2",
        "response_length/clip_ratio": "the longest answers, which can end by EOS as well",
        "val-*": "a held-out score; say which, for example eval/gold: {key: ...}",
        "critic/*": _NONE,
        "actor/*": _NONE,
        "response_length/*": "response_length/mean is the mean",
        "response_length_non_aborted/*": "response_length/mean is over all responses",
        "response/*": _NONE,
        "prompt_length/*": _NONE,
        "timing*": "seconds",
        "perf/*": "speed and memory",
        "training/*": _NONE,
        "global_seqlen/*": _NONE,
        "num_turns/*": _NONE,
        "tool_call_counts/*": _NONE,
        "rollout_corr/*": "the trainer against its inference engine",
    },
)
_OPENRLHF = Program(
    "openrlhf",
    "OpenRLHF 0.11.0 (3c3be623), trainer/ppo_trainer.py, trainer/ppo_utils/experience_maker.py,"
    " trainer/ray/ppo_actor.py and ppo_critic.py, utils/logging_utils.py",
    ("logprobs_diff", "ppo_clip_ratio", "actor_lr", "actor_grad_norm", "rollout/*"),
    {"global_step": "updates", "step": "updates"},
    {
        "rollout/reward_mean": _same("objective/scores"),
        "rollout/reward_std": _same("objective/scores_std"),
        "rollout/response_length_mean": _same("objective/length"),
        "rollout/truncated_rate": _complement("objective/eos_rate"),
        "reward": _same("objective/scores"),
        "response_length": _same("objective/length"),
        "truncated": _complement("objective/eos_rate"),
        "logprobs_diff": _same("objective/kl_per_token"),
        "policy_loss": _same("policy/pg_loss"),
        "entropy_loss": _same("policy/entropy"),
        "ppo_clip_ratio": _same("policy/pg_clipfrac"),
        "actor_lr": _same("policy/lr"),
        "actor_grad_norm": _same("policy/grad_norm"),
        "critic_loss": _same("value/vf_loss"),
        "critic_grad_norm": _same("value/grad_norm"),
    },
    {
        "kl": "its estimator is a setting (k1, k2, k3); logprobs_diff is always k1",
        "ppo_kl": "k1 of the new against the behaviour policy, where policy/approxkl is k2",
        "vllm_kl": "the trainer against its inference engine",
        "return": "with some advantage estimators a baseline is subtracted from it",
        "group_reward_std": "the spread within a prompt's group",
        "total_length": "prompt and response",
        "critic_lr": _NONE,
        "values": _NONE,
        "timing/*": "seconds",
        "rollout/*": _NONE,
        "episode": "the place in the data",
        "eval/*": "a held-out score; say which, for example eval/gold: {key: ...}",
    },
)
PROGRAMS = {program.name: program for program in (_TRL_PPO, _TRL_GRPO, _TRL_RLOO, _VERL, _OPENRLHF)}
TRL = {theirs: meaning.metric for theirs, meaning in _TRL_PPO.names.items()}
"""Names that are understood whatever else a log holds, since no other program uses them for something else."""


def detected(keys: Iterable[str]) -> Program | None:
    """The program that logs keys like these, by its signs; None for an unknown one.

    >>> detected(["step", "actor/entropy", "critic/score/mean"]).name
    'verl'
    >>> detected(["step", "reward", "clip_ratio/low_mean"]).name, detected(["step", "reward"])
    ('trl-grpo or trl-rloo', None)
    """
    present = [bare(key) for key in keys]
    found = {program.name: _count(present, program.signs) for program in PROGRAMS.values()}
    name = max(found, key=lambda candidate: found[candidate])
    if not found[name]:
        return None
    if name == _TRL_GRPO.name and not _count(present, _GRPO_ONLY):
        return _EITHER
    return PROGRAMS[name]


def meaning_of(program: Program, key: str) -> Meaning | None:
    """What a program means by a key, without a tracker's prefix; the means of TRL's reward functions are parts."""
    if key in program.names:
        return program.names[key]
    part = re.fullmatch(r"rewards/([a-z][a-z0-9_]*)/mean", key)
    return Meaning(f"reward/{part[1]}") if part and program.signs == _TRL_GROUP_SIGNS else None


def why_ignored(program: Program, key: str) -> str | None:
    """Why a program's key is not taken; None where it is not known."""
    return next((why for pattern, why in program.ignored.items() if fnmatchcase(key, pattern)), None)


def _count(keys: Sequence[str], patterns: Sequence[str]) -> int:
    return sum(any(fnmatchcase(key, pattern) for pattern in patterns) for key in keys)
