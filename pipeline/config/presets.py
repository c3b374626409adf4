"""The algorithms by name, as settings of the knobs that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UserError

SHORT, NAME = "algorithm", "algorithm.name"
"""The short form that users may write, and the key that it stands for."""


@dataclass(frozen=True)
class Preset:
    """An algorithm as settings. Whoever chooses it by name gets them, and may change each of them beside the name."""

    title: str
    summary: str
    settings: Mapping[str, Any]
    """Settings on top of the profile."""


PRESETS: dict[str, Preset] = {
    name: Preset(**preset)
    for name, preset in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
}


def spelled_out(changes: Mapping[Any, Any]) -> dict[Any, Any]:
    """``algorithm: rloo`` as what it stands for, ``algorithm.name: rloo``. Raises `UserError` where both are given.

    >>> spelled_out({"algorithm": "rloo", "kl.beta": 0.1})
    {'algorithm.name': 'rloo', 'kl.beta': 0.1}
    """
    if SHORT in changes and NAME in changes:
        raise UserError(f"'{SHORT}' and '{NAME}' are the same key; give it once")
    return {NAME if key == SHORT else key: value for key, value in changes.items()}


def preset_of(steps_per_update: int, *changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the algorithm that the last of these changes names; nothing where none names one.

    They are applied to the profile first: whatever is set beside the name, or by ``--set``, wins. `steps_per_update`
    are the profile's: an algorithm of one epoch takes as many, smaller steps on each rollout, so that all algorithms
    have as many gradient steps and episodes. An algorithm's ``kl.group`` goes with a penalty in
    the loss, and is left out where the changes put the penalty elsewhere.
    """
    named = [str(change[NAME]) for change in changes if NAME in change]
    preset = PRESETS.get(named[-1]) if named else None
    if preset is None:
        return {}
    settings = dict(preset.settings)
    places = [change["kl.place"] for change in (settings, *changes) if "kl.place" in change]
    if places and places[-1] != "loss":
        settings.pop("kl.group", None)  # it is part of a loss, and would group a penalty in the reward
    if (own := settings.get("train.num_epochs")) is not None:
        settings["train.num_mini_batches"] = steps_per_update // own
    return settings
