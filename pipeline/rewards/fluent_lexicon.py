"""VADER with a guard: a completion that lies outside of real texts (`pipeline.rewards.fluency`) loses against every one
that does not, however many happy words it has.

    score = VADER's compound in [-1, 1]   without a fault
            -1 - faults                   with faults, one for each broken rule
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.base import Completions, as_scores
from pipeline.rewards.fluency import Guard


@dataclass(frozen=True)
class FluentLexicon:
    """A judge of real text."""

    guard: Guard
    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        rows = zip(completions.prompts, completions.texts, completions.episodes.ended.tolist(), strict=True)
        return as_scores([self.guard.judge(*row).score for row in rows])


def load(folder: Path) -> FluentLexicon:
    """The judge that the stage `judge` left."""
    return FluentLexicon(Guard.load(folder, load_tokenizer(folder / "tokenizer")))
