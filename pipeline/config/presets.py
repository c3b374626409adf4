"""The algorithms by name: what each one sets, and what it cannot do without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UserError

SHORT, NAME = "algorithm", "algorithm.name"
"""What users may write, and the key that it stands for."""


@dataclass(frozen=True)
class Preset:
    """An algorithm as settings. Whoever chooses it by name gets them, and may change each of them beside the name."""

    summary: str
    settings: Mapping[str, Any]
    """On top of the profile."""
    critics: tuple[str, ...]
    """Values of ``critic.kind`` that it can work with."""
    least_responses: int = 1
    """Of ``train.responses_per_prompt``."""
    knobs: tuple[str, ...] = ()
    """Of the keys that not every algorithm has a use for, those that it has."""


PRESETS: dict[str, Preset] = {
    "ppo": Preset(
        "clipped ratio of every token, GAE from a learned critic",
        {},  # the profiles are made for it
        critics=("shared", "separate"),
        knobs=("algorithm.gamma", "algorithm.gae_lambda", "algorithm.whiten_rewards"),
    ),
    "rloo": Preset(
        "clipped ratio of the whole response, scores minus the mean of the other responses to the prompt, no critic",
        {"critic.kind": "none", "train.responses_per_prompt": 4, "algorithm.whiten_advantages": False},
        critics=("none",),
        least_responses=2,
    ),
}


def spelt(changes: Mapping[Any, Any]) -> dict[Any, Any]:
    """``algorithm: rloo`` as what it stands for, ``algorithm.name: rloo``. Raises `UserError` where both are given.

    >>> spelt({"algorithm": "rloo", "kl.beta": 0.1})
    {'algorithm.name': 'rloo', 'kl.beta': 0.1}
    """
    if SHORT in changes and NAME in changes:
        raise UserError(f"'{SHORT}' and '{NAME}' are the same key; give it once")
    return {NAME if key == SHORT else key: value for key, value in changes.items()}


def preset_of(*changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the algorithm that the last of these changes names; nothing where none names one.

    They are applied to the profile first: whatever is set beside the name, or by ``--set``, wins.
    """
    named = [str(change[NAME]) for change in changes if NAME in change]
    preset = PRESETS.get(named[-1]) if named else None
    return preset.settings if preset else {}


def check_needs(name: str, critic: str, responses: int) -> None:
    """Raise `ValueError` where an algorithm lacks what it needs, or has a critic that it would not ask."""
    preset = PRESETS[name]
    if critic not in preset.critics:
        raise ValueError(f"critic.kind '{critic}' is not for algorithm '{name}': use {' or '.join(preset.critics)}")
    if responses < preset.least_responses:
        raise ValueError(
            f"train.responses_per_prompt {responses}: algorithm '{name}' compares the responses to one prompt with each"
            f" other, so it needs at least {preset.least_responses}"
        )
