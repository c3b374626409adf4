"""Named arms from a design: the full product of a grid, one factor at a time, declared interactions. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.presets import NAME, SHORT

MOST_ARMS = 1_000
"""Most arms of a study: checking a thousand takes seconds."""
CLEAR = ("train", "algorithm", "kl.beta", "critic.vf_coef", "optimiser.lr")
"""Sections and keys whose last part is enough as a label."""

BASELINE = "baseline"
"""The arm that changes nothing: the profile as it is, with ``--set``."""

Overrides = dict[str, Any]


def of_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, Overrides]:
    """Every combination of the values.

    >>> list(of_grid({"kl.beta": [0, 0.05], "algorithm.clip.epsilon": [0.2]}))
    ['beta=0+epsilon=0.2', 'beta=0.05+epsilon=0.2']
    """
    return _named(_product(list(grid), grid), grid)


def of_factors(
    factors: Mapping[str, Sequence[Any]], interactions: Iterable[Sequence[str]] = ()
) -> dict[str, Overrides]:
    """The baseline, then each value of each factor alone, then both factors of every interaction at once.

    With a, b and both of two factors, the interaction is ``both - a - b + baseline``: each of these is an arm.

    >>> list(of_factors({"kl.beta": [0], "train.num_epochs": [1, 2]}, [("kl.beta", "train.num_epochs")]))
    ['baseline', 'beta=0', 'num_epochs=1', 'num_epochs=2', 'beta=0+num_epochs=1', 'beta=0+num_epochs=2']
    """
    alone = ({key: value} for key, values in factors.items() for value in values)
    together = (both for pair in interactions for both in _product(pair, factors))
    return {BASELINE: {}, **_named(itertools.chain(alone, together), factors)}


def arm_name(overrides: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """``beta=0.05+epsilon=0.1``; `pipeline.run.layout.safe` later refuses names that no file can have."""
    return "+".join(f"{labels[key]}={word(value)}" for key, value in overrides.items())


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Shorten each dotted key to its last part where that is clear by itself.

    >>> short_names(["train.steps", "sft.steps", "kl.beta", "kl.end"])
    {'train.steps': 'steps', 'sft.steps': 'sft.steps', 'kl.beta': 'beta', 'kl.end': 'kl.end'}
    """
    return {key: _short_name(key) for key in keys}


def _short_name(key: str) -> str:
    if key == NAME:
        return SHORT
    section, name = key.partition(".")[0], key.rpartition(".")[2]
    return name if section in CLEAR or key in CLEAR else key


def word(value: Any) -> str:
    """A value as part of an arm's name."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return "-".join(word(item) for item in value) if isinstance(value, list | tuple) else str(value)


def _product(keys: Sequence[str], values: Mapping[str, Sequence[Any]]) -> Iterator[Overrides]:
    return (dict(zip(keys, chosen, strict=True)) for chosen in itertools.product(*(values[key] for key in keys)))


def _named(arms: Iterable[Overrides], keys: Iterable[str]) -> dict[str, Overrides]:
    """The arms under their names. Raises `ValueError` where two have one name, or there are too many."""
    labels = short_names(keys)
    named: dict[str, Overrides] = {}
    for overrides in arms:
        name = arm_name(overrides, labels)
        if name in named:
            raise ValueError(f"the arm '{name}' comes out more than once; give each value once")
        if len(named) == MOST_ARMS:
            raise ValueError(f"more than {MOST_ARMS:,} arms; at most {MOST_ARMS:,} are planned")
        named[name] = overrides
    return named
