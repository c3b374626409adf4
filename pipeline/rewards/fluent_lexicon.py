"""VADER with a guard: a completion that lies outside of real texts (`pipeline.rewards.fluency`) loses against every one
that does not, however many happy words it has.

    score = VADER's compound in [-1, 1]   without a fault
            -1 - faults                   with faults, one for each broken rule
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeline.rewards.base import Completions, Reward, as_scores
from pipeline.rewards.fluency import Guard, guarded


@dataclass(frozen=True)
class FluentLexicon:
    """A judge of real text."""

    lexicon: Reward
    guard: Guard
    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        rows = zip(completions.prompts, completions.texts, completions.episodes.ended.tolist(), strict=True)
        faults = [self.guard.faults(prompt, text, ended) for prompt, text, ended in rows]
        scores = self.lexicon(completions).tolist()
        return as_scores([guarded(score, count) for score, count in zip(scores, faults, strict=True)])
