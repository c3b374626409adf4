"""What to answer to a name that is unknown: the key that is meant, be it renamed, misspelt, or known by a word of the
field.

Imports nothing outside the standard library, so that ``--help`` can name the words without loading the configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOVED = {
    "train": (
        "seed steps batch_size num_mini_batches num_ppo_epochs:num_epochs response_length temperature missing_eos"
        " missing_eos_penalty min_entropy max_repetition stop"
    ),
    "algorithm": "cliprange dual_clip gamma gae_lambda whiten_rewards whiten_advantages target_kl",
    "kl": (
        "kl_coef:beta kl_in:place kl_loss_estimator:loss_estimator kl_control:control kl_coef_end:beta_end"
        " kl_coef_stages:beta_stages kl_target:target kl_horizon:horizon kl_hinge:hinge"
    ),
    "optimiser": (
        "lr lr_schedule adam_eps max_grad_norm clip_norms lr_guard:guard lr_guard_kl:guard_kl"
        " lr_guard_factor:guard_factor lr_guard_steps:guard_steps"
    ),
    "critic": "critic:kind critic_init:init critic_lr:lr value_head_lr:head_lr vf_coef cliprange_value:cliprange",
    "adapter": "adapter:kind lora_rank:rank lora_alpha:alpha quantize frozen_layers",
    "entropy": "ent_coef:coef",
}
"""What was the section ``ppo``: where its keys are now, as ``name`` or ``old:new``."""

TRAINING = (*_MOVED, "replay", "floor")
"""The sections that most studies are about."""

RENAMED: dict[str, str] = {
    **{
        f"ppo.{pair.partition(':')[0]}": f"{section}.{pair.rpartition(':')[2]}"
        for section, pairs in _MOVED.items()
        for pair in pairs.split()
    },
    "ppo.max_wall_clock_h": "caps.wall_clock_h",
    "ppo.max_generated_tokens": "caps.generated_tokens",
    "ppo.max_memory_gib": "caps.memory_gib",
    "algorithm.ent_coef": "entropy.coef",
}
"""Keys that older versions had, and what each is called now. Add a line whenever a key moves; nothing is accepted
silently."""

WORDS: dict[str, tuple[str, ...]] = {
    **{old.rpartition(".")[2]: (new,) for old, new in RENAMED.items()},
    "beta": ("kl.beta",),
    "lambda": ("algorithm.gae_lambda",),
    "epsilon": ("algorithm.cliprange",),
    "c1": ("critic.vf_coef",),
    "c2": ("entropy.coef",),
    "β": ("kl.beta",),
    "λ": ("algorithm.gae_lambda",),
    "ε": ("algorithm.cliprange",),
    "γ": ("algorithm.gamma",),
    "lam": ("algorithm.gae_lambda",),
    "eps": ("algorithm.cliprange",),
    "clip": ("algorithm.cliprange",),
    "clip_range": ("algorithm.cliprange",),
    "clip_ratio": ("algorithm.cliprange",),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high", "clip_higher"), ("algorithm.cliprange_high",)),
    **dict.fromkeys(("loss_type", "loss_agg_mode"), ("algorithm.aggregation",)),
    "importance_sampling_level": ("algorithm.ratio",),
    **dict.fromkeys(("beta1", "beta_1", "b1", "β1", "β₁"), ("algorithm.v_star_beta",)),
    **dict.fromkeys(("beta2", "beta_2", "b2", "β2", "β₂"), ("kl.beta",)),
    **dict.fromkeys(("num_ref_samples", "ref_samples", "num_reference_samples"), ("values.samples",)),
    **dict.fromkeys(("frozen_dtype", "ref_dtype", "reference_dtype"), ("train.frozen_dtype",)),
    **dict.fromkeys(("offload", "param_offload", "ref_offload", "cpu_offload"), ("runtime.offload_reference",)),
    "scale_rewards": ("algorithm.advantage",),
    "init_kl_coef": ("kl.beta",),
    "value_coef": ("critic.vf_coef",),
    **dict.fromkeys(("entropy_coef", "entropy_coeff", "entropy_bonus"), ("entropy.coef",)),
    "epochs": ("train.num_epochs", "reward.epochs"),
    "learning_rate": ("optimiser.lr", "sft.lr", "reward.lr"),
    "max_new_tokens": ("train.response_length",),
    "max_steps": ("train.steps", "sft.steps"),
    "model_name_or_path": ("model.base",),
    **dict.fromkeys(
        ("num_generations", "group_size", "rloo_k", "n_samples_per_prompt"), ("train.responses_per_prompt",)
    ),
    **dict.fromkeys(("bon", "best_of_n", "n_best"), ("evaluate.best_of",)),
    **dict.fromkeys(("algo", "algorithm", "method", "estimator", "adv_estimator"), ("algorithm.name",)),
}
"""Words by which papers and other libraries know a knob, lower case, and the keys that may be meant."""

REMARKS: dict[str, str] = {"c1": " (of half the squared error: give twice a recipe's c1)"}
"""What to say of a word whose key does not mean quite the same."""

SYMBOLS = (
    f"beta = kl.beta, lambda = algorithm.gae_lambda, epsilon = algorithm.cliprange, c1 = critic.vf_coef{REMARKS['c1']}"
)
"""The four that every paper on PPO uses, for help texts and templates."""


LONGEST = 200
"""Characters; a longer name is like none that there is, and to compare it takes seconds."""
_FORMER_RLOO = {"advantage": "rloo", "ratio": "sequence_sum", "aggregation": "seq_mean_token_mean"}
"""What was implied by the name before it became a preset of knobs."""


def upgraded(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration with its former keys under their present names.

    >>> upgraded({"ppo": {"steps": 4, "kl_coef": 0.1}, "sft": {}})
    {'sft': {}, 'train': {'steps': 4}, 'kl': {'beta': 0.1}}
    >>> upgraded({"algorithm": {"name": "ppo", "ent_coef": 0.01}})
    {'algorithm': {'name': 'ppo'}, 'entropy': {'coef': 0.01}}
    """
    sections = {section: content for section, content in config.items() if section != "ppo"}
    sections = _moved(sections, "ppo", config.get("ppo") or {})
    algorithm = sections.get("algorithm", {})
    former = {name: value for name, value in algorithm.items() if f"algorithm.{name}" in RENAMED}
    if former:
        kept = {name: value for name, value in algorithm.items() if name not in former}
        sections = _moved(sections | {"algorithm": kept}, "algorithm", former)
    algorithm = sections.get("algorithm", {})
    if algorithm.get("name") == "rloo" and "advantage" not in algorithm:
        sections |= {"algorithm": {**algorithm, **_FORMER_RLOO}, "kl": _former_place(sections["kl"])}
    if sections.get("kl", {}).get("loss_estimator") == "sequence_k2":
        sections["kl"] = _former_sequence_k2(sections["kl"])
    return sections


def renamed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings by their dotted keys, former keys and values under their present names.

    >>> renamed({"algorithm.ent_coef": 0.01, "kl.beta": 0.1})
    {'entropy.coef': 0.01, 'kl.beta': 0.1}
    >>> renamed({"kl.place": "loss", "kl.loss_estimator": "sequence_k2"})
    {'kl.place': 'loss', 'kl.loss_estimator': 'k2', 'kl.group': 'sequence'}
    """
    present = {RENAMED.get(key, key): value for key, value in overrides.items()}
    if present.get("kl.loss_estimator") == "sequence_k2":
        group = {"kl.group": "sequence"} if present.get("kl.place") == "loss" else {}
        present |= {"kl.loss_estimator": "k2", **group}
    return present


def _moved(sections: dict[str, Any], former: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with what the section `former` held added where it belongs today."""
    sections = dict(sections)
    for name, value in content.items():
        section, _, key = RENAMED.get(f"{former}.{name}", f"{former}.{name}").partition(".")
        sections[section] = {**sections.get(section, {}), key: value}
    return sections


def _former_place(kl: Mapping[str, Any]) -> dict[str, Any]:
    """What RLOO called the reward is now the score of the response."""
    return {**kl, "place": "score" if kl.get("place", "reward") == "reward" else kl["place"]}


def _former_sequence_k2(kl: Mapping[str, Any]) -> dict[str, Any]:
    """The estimator of whole responses is now one of a group; it was never one of the reward."""
    group = "token" if kl.get("place", "reward") == "reward" else "sequence"
    return {**kl, "loss_estimator": "k2", "group": group}


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """A hint ``; did you mean 'x'?`` or nothing; `cutoff` is the least likeness, of 1."""
    if len(name) > LONGEST:
        return ""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ""


def meant_key(key: str, known: Sequence[str]) -> str:
    """A hint at the dotted key that is meant by one that no configuration has, or nothing.

    >>> keys = ["train.steps", "sft.steps", "kl.beta"]
    >>> meant_key("kl_coef", keys), meant_key("steps", keys)
    ("; kl_coef is the key 'kl.beta'", "; did you mean 'train.steps' or 'sft.steps'?")
    >>> meant_key("ppo.klcoef", keys), meant_key("ppo", keys)
    ("; did you mean 'kl.beta'?", '; its keys are now in train, algorithm, kl, optimiser, critic, adapter, entropy')
    """
    if len(key) > LONGEST:
        return ""
    if key in RENAMED:
        return f"; it is now '{RENAMED[key]}'"
    if key == "ppo":
        return f"; its keys are now in {', '.join(_MOVED)}"
    section, _, name = key.rpartition(".")
    of_section = [dotted for dotted in known if dotted.startswith(f"{section}.")]
    if any(dotted.startswith(f"{key}.") for dotted in known):
        return (
            f"; '{key}' is a section: name its keys with a dot, for example"
            f" '{next(dotted for dotted in known if dotted.startswith(f'{key}.'))}'"
        )
    if same := meant(name, of_section) if section else meant(name, known):
        return f"; did you mean {either(same)}?"
    if words := [dotted for dotted in WORDS.get(name.lower(), ()) if dotted in known]:
        return (
            f"; {name} is the key"
            f" {either([dotted for dotted in words if dotted in of_section] or words)}{REMARKS.get(name.lower(), '')}"
        )
    if same := meant(name, known):
        return f"; did you mean {either(same)}?"
    if former := difflib.get_close_matches(key, RENAMED, n=1, cutoff=0.8) if section == "ppo" else []:
        return f"; did you mean '{RENAMED[former[0]]}'?"
    return nearest(key, known) if section else _nearest_name(name, known)


def meant(name: str, known: Iterable[str], mark: str = ".") -> list[str]:
    """The known names whose last part, after `mark`, is `name`; those that most studies are about first."""
    return sorted(
        (candidate for candidate in known if candidate.rpartition(mark)[2] == name),
        key=lambda candidate: candidate.partition(".")[0] not in TRAINING,
    )


def either(names: Sequence[str]) -> str:
    """``'a'``, ``'a' or 'b'``, ``'a', 'b' or 'c'``."""
    quoted = [f"'{name}'" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _nearest_name(name: str, known: Iterable[str]) -> str:
    """A hint for a key without its section, by the names of the keys alone, former ones included."""
    listed = list(known)
    names = [*(dotted.rpartition(".")[2] for dotted in listed), *WORDS]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    keys = (meant(close[0], listed) or [dotted for dotted in WORDS[close[0]] if dotted in listed]) if close else []
    return f"; did you mean {either(keys)}?" if keys else nearest(name, listed)
