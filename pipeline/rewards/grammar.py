"""The gold judge of built-in reviews: the meaning that the grammar itself gives to a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.config.rewards import Scorer
from pipeline.data.semantics import judge
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions, as_scores


class GrammarJudge:
    """Judge points: polarity x intensity summed over clauses, less faults. See pipeline/data/README.md."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        return as_scores(
            [judge(prompt, text).score for prompt, text in zip(completions.prompts, completions.texts, strict=True)]
        )


def load(section: str, cfg: Scorer, device: torch.device, room: Room) -> GrammarJudge:
    """It has nothing to configure."""
    return GrammarJudge()
