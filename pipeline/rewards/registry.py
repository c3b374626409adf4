"""The rewards and judges that score texts without having been trained here, by the kind a configuration gives them.

A learned reward is made by the reward stage and loaded from its artifact (`pipeline.stages.common.reward_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from pipeline.config.rewards import Scorer
from pipeline.resources.out_of_memory import Room
from pipeline.rewards import classifier, cycle, grammar, lexicon, ocr
from pipeline.rewards.base import Reward

Load = Callable[[str, Scorer, torch.device, Room], Reward]
"""From the section's name for messages, its settings, the device and how many rows fit at once."""

READY: dict[str, Load] = {
    "lexicon": lexicon.load,
    "classifier": classifier.load,
    "grammar": grammar.load,
    "helpful": grammar.load_helpful,
    "harmless": grammar.load_harmless,
    "ocr": ocr.load,
}
"""One line a kind; what each is, in words for users, stands in `pipeline.config.rewards.READY`."""
JUDGES: dict[str, Load] = {**READY, "cycle": cycle.load}
"""Also `pipeline.config.rewards.JUDGES`: what can decide pairs without a score to train on."""


def ready(section: str, kind: str, cfg: Scorer, device: torch.device, room: Room) -> Reward:
    """The scorer of a kind. Raises `ValueError` for a kind that is no such scorer: `learned` is trained, `auto` stands
    for another kind."""
    return _load(READY, section, kind, cfg, device, room)


def judge(section: str, kind: str, cfg: Scorer, device: torch.device, room: Room) -> Reward:
    """The gold judge of a kind. Raises `ValueError` for a kind that is no judge."""
    return _load(JUDGES, section, kind, cfg, device, room)


def _load(kinds: Mapping[str, Load], section: str, kind: str, cfg: Scorer, device: torch.device, room: Room) -> Reward:
    if kind not in kinds:
        raise ValueError(f"{section}: unknown kind of scorer '{kind}'; there are: {', '.join(kinds)}")
    return kinds[kind](section, cfg, device, room)
