"""What to answer to a name that is unknown: the key that is meant, be it renamed, misspelt, or known by a word of the
field.

Imports nothing outside the standard library, so that ``--help`` can name the words without loading the configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

RENAMED: dict[str, str] = {
    "ppo.max_wall_clock_h": "caps.wall_clock_h",
    "ppo.max_generated_tokens": "caps.generated_tokens",
    "ppo.max_memory_gib": "caps.memory_gib",
}
"""Keys that older versions had, and what each is called now. Add a line whenever a key moves; nothing is accepted
silently."""

WORDS: dict[str, tuple[str, ...]] = {
    "beta": ("ppo.kl_coef",),
    "lambda": ("ppo.gae_lambda",),
    "epsilon": ("ppo.cliprange",),
    "c1": ("ppo.vf_coef",),
    "c2": ("ppo.ent_coef",),
    "β": ("ppo.kl_coef",),
    "λ": ("ppo.gae_lambda",),
    "ε": ("ppo.cliprange",),
    "γ": ("ppo.gamma",),
    "lam": ("ppo.gae_lambda",),
    "eps": ("ppo.cliprange",),
    "clip": ("ppo.cliprange",),
    "clip_range": ("ppo.cliprange",),
    "clip_ratio": ("ppo.cliprange",),
    "init_kl_coef": ("ppo.kl_coef",),
    "value_coef": ("ppo.vf_coef",),
    "entropy_coef": ("ppo.ent_coef",),
    "epochs": ("ppo.num_ppo_epochs", "reward.epochs"),
    "learning_rate": ("ppo.lr", "sft.lr", "reward.lr"),
    "max_new_tokens": ("ppo.response_length",),
    "max_steps": ("ppo.steps", "sft.steps"),
    "model_name_or_path": ("model.base",),
}
"""Words by which papers and other libraries know a knob, lower case, and the keys that may be meant."""

REMARKS: dict[str, str] = {"c1": " (of half the squared error: give twice a recipe's c1)"}
"""What to say of a word whose key does not mean quite the same."""

SYMBOLS = f"beta = ppo.kl_coef, lambda = ppo.gae_lambda, epsilon = ppo.cliprange, c1 = ppo.vf_coef{REMARKS['c1']}"
"""The four that every paper on PPO uses, for help texts and templates."""


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """A hint ``; did you mean 'x'?`` or nothing; `cutoff` is the least likeness, of 1."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ""


def meant_key(key: str, known: Sequence[str]) -> str:
    """A hint at the dotted key that is meant by one that no configuration has, or nothing.

    >>> keys = ["ppo.steps", "sft.steps", "ppo.kl_coef"]
    >>> meant_key("beta", keys), meant_key("steps", keys)
    ("; beta is the key 'ppo.kl_coef'", "; did you mean 'ppo.steps' or 'sft.steps'?")
    >>> meant_key("ppo.klcoef", keys), meant_key("ppo", keys)
    ("; did you mean 'ppo.kl_coef'?", "; 'ppo' is a section: name its keys with a dot, for example 'ppo.steps'")
    """
    if key in RENAMED:
        return f"; it is now '{RENAMED[key]}'"
    section, _, name = key.rpartition(".")
    of_section = [one for one in known if one.startswith(f"{section}.")]
    if any(one.startswith(f"{key}.") for one in known):
        return (
            f"; '{key}' is a section: name its keys with a dot, for example"
            f" '{next(one for one in known if one.startswith(f'{key}.'))}'"
        )
    if same := meant(name, of_section) if section else meant(name, known):
        return f"; did you mean {either(same)}?"
    if words := [one for one in WORDS.get(name.lower(), ()) if one in known]:
        return (
            f"; {name} is the key"
            f" {either([one for one in words if one in of_section] or words)}{REMARKS.get(name.lower(), '')}"
        )
    if same := meant(name, known):
        return f"; did you mean {either(same)}?"
    return nearest(key, known) if section else _nearest_name(name, known)


def meant(name: str, known: Iterable[str], mark: str = ".") -> list[str]:
    """The known names whose last part, after `mark`, is `name`; those of the section ``ppo``, which studies are about,
    first."""
    return sorted((one for one in known if one.rpartition(mark)[2] == name), key=lambda one: not one.startswith("ppo."))


def either(names: Sequence[str]) -> str:
    """``'a'``, ``'a' or 'b'``, ``'a', 'b' or 'c'``."""
    quoted = [f"'{name}'" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _nearest_name(name: str, known: Iterable[str]) -> str:
    """A hint for a key without its section, by the names of the keys alone."""
    listed = list(known)
    close = difflib.get_close_matches(name, [one.rpartition(".")[2] for one in listed], n=1, cutoff=0.6)
    return f"; did you mean {either(meant(close[0], listed))}?" if close else nearest(name, listed)
