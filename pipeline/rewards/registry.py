"""Makes the rewards and judges that are not trained here, by the lines of `KINDS`.

A learned reward is made by the reward stage and loaded from its artifact (`pipeline.rewards.stored.reward_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.rewards import own
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.kinds import KINDS, is_own
from pipeline.rewards.settings import Scorer


def ready(section: str, scorer: Scorer, device: torch.device, room: Room) -> Reward:
    """The scorer that a section of the configuration describes. `section` is its key, for messages.

    Raises `UserError` where the user's own class, a model or a package cannot be had.
    """
    if is_own(scorer.kind):
        return OwnReward(f"{section}.kind = '{scorer.kind}'", own.made(section, scorer))
    kind = KINDS[scorer.kind]
    code = resolve_name(kind.code)
    reward: Reward = code(section, scorer.chosen, device, room) if kind.settings else code()
    return reward


def fitted(kind: str, folder: Path) -> Reward:
    """The judge that the stage `judge` has fitted, from its folder."""
    judge: Reward = resolve_name(KINDS[kind].code)(folder)
    return judge


class OwnReward:
    """A `Reward` by the user's class. Scoring raises `UserError` where it fails, or does not give a finite number for
    each completion."""

    def __init__(self, name: str, score: Any) -> None:
        self._name, self._score = name, score
        self.networks: Sequence[Any] = tuple(getattr(score, "networks", ()))

    def __call__(self, completions: Completions) -> Tensor:
        try:
            with torch.inference_mode():
                scores = torch.as_tensor(self._score(completions), dtype=torch.float32).cpu()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self._name}: scoring failed ({own.words(error)})") from None
        if scores.shape != (len(completions.texts),):
            raise UserError(
                f"{self._name}: it must give one number for each of {len(completions.texts)} completions, and gave the"
                f" shape {tuple(scores.shape)}"
            )
        if not bool(scores.isfinite().all()):
            row = int((~scores.isfinite()).nonzero()[0])
            raise UserError(f"{self._name}: the score of {completions.texts[row]!r} is {float(scores[row])}")
        return scores
