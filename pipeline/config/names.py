"""Answers to an unknown name: the key that is meant, be it misspelt or known by a word of the field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from pipeline.algorithms.kinds import PARTS

_OWN = [name for name, part in PARTS.items() if part.settings is not None]
TRAINING = ("train", "algorithm", "kl", "optimiser", "critic", "adapter", "replay", *_OWN)
"""The sections that most studies are about."""


WORDS: dict[str, tuple[str, ...]] = {
    word: tuple(keys.split())
    for keys, words in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8")).items()
    for word in words
}
"""Names of a knob in papers and other libraries, lower case, and the keys that may be meant."""

SYMBOLS = "beta = kl.beta, lambda = algorithm.gae_lambda, epsilon = algorithm.clip.epsilon, c1 = critic.vf_coef"
"""The four that every paper on PPO uses, for help texts and templates."""
LONGEST = 200
"""Characters; a longer name is like none that there is, and to compare it takes seconds."""


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
    """
    if len(key) > LONGEST:
        return ""
    section, _, name = key.rpartition(".")
    of_section = [dotted for dotted in known if dotted.startswith(f"{section}.")]
    if inside := [dotted for dotted in known if dotted.startswith(f"{key}.")]:
        return f"; '{key}' is a section: name its keys with a dot, for example '{inside[0]}'"
    if section and (same := meant(name, of_section)):
        return f"; did you mean {either(same)}?"
    if words := [dotted for dotted in WORDS.get(name.lower(), ()) if dotted in known]:
        return f"; {name} is the key {either([dotted for dotted in words if dotted in of_section] or words)}"
    if same := meant(name, known):
        return f"; did you mean {either(same)}?"
    return nearest(key, known) if of_section else _nearest_name(name, known)


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
    """A hint for a key without a section that there is, by the names of the keys alone and the words for them."""
    listed = list(known)
    names = [*(dotted.rpartition(".")[2] for dotted in listed), *WORDS]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    keys = (meant(close[0], listed) or [dotted for dotted in WORDS[close[0]] if dotted in listed]) if close else []
    return f"; did you mean {either(keys)}?" if keys else nearest(name, listed)
