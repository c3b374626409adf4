"""The gold judge of built-in reviews: the meaning that the grammar itself gives to a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.data.semantics import judge
from pipeline.rewards.base import Completions, as_scores


class GrammarJudge:
    """Judge points: polarity x intensity summed over clauses, less faults. See pipeline/data/README.md."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        return as_scores(
            [judge(prompt, text).score for prompt, text in zip(completions.prompts, completions.texts, strict=True)]
        )
