"""Which settings change a trial that has a symptom: those that act in its configuration."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pipeline.config.effects import inert, value_at
from pipeline.config.trial import TrialConfig

Knob = tuple[str, str]
"""A verb, and the key that it is about: ("lower", "optimiser.lr")."""
LEAST_VALUE = {"train.num_epochs": 1}
"""Keys and their smallest values, where these are not 0: no trial can go below."""
OF_ADAM = ("optimiser.lr", "train.num_epochs")
"""Keys that change the policy's step only where the optimiser takes it: TRPO's one step per rollout has its own."""
CONTROLS = {"kl.beta": "kl.control", "entropy.coef": "entropy.control"}
"""Starting values of coefficients, and what says how they move."""
STAGES = {"kl.stages": "kl.control", "entropy.stages": "entropy.control"}


def acting(knobs: Sequence[Knob], settings: Mapping[str, object]) -> tuple[Knob, ...]:
    """Those that change a trial with this flat configuration, in their order; a setting that is not stated has its
    default."""
    config = _unchecked(settings)
    return tuple((verb, key) for verb, key in knobs if _acts(config, verb, key))


def instruction(knobs: Sequence[Knob]) -> str:
    """What to change, in words; empty for none.

    >>> instruction([("lower", "optimiser.lr"), ("lower", "train.num_epochs"), ("raise", "kl.beta")])
    'lower optimiser.lr or train.num_epochs, or raise kl.beta'
    """
    groups = itertools.groupby(knobs, key=lambda knob: knob[0])
    return ", or ".join(f"{verb} {' or '.join(key for _, key in group)}" for verb, group in groups)


def _acts(config: TrialConfig, verb: str, key: str) -> bool:
    value = value_at(config, key)
    if inert(config, key):
        return False
    if verb == "lower" and isinstance(value, int | float) and value <= LEAST_VALUE.get(key, 0):
        return False
    if key in OF_ADAM and config.algorithm.trust_region == "trpo":
        return False
    if key in CONTROLS and value and value_at(config, CONTROLS[key]) == "adaptive":
        return False  # the target decides where it goes from there
    return key not in STAGES or value_at(config, STAGES[key]) == "piecewise"


def _unchecked(settings: Mapping[str, Any]) -> TrialConfig:
    """The configuration without its checks, which a part of one, such as that of an imported trial, might not pass."""
    made: TrialConfig = _constructed(TrialConfig, settings, "")
    return made


def _constructed(model: type[BaseModel], settings: Mapping[str, Any], prefix: str) -> Any:
    values: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            values[name] = _constructed(info.annotation, settings, f"{prefix}{name}.")
        elif f"{prefix}{name}" in settings:
            values[name] = settings[f"{prefix}{name}"]
    return model.model_construct(**values)
