"""The gold judges of built-in reviews: the meaning that the grammar itself gives to a text, and how much it insults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.data.semantics import insulting_words, judge
from pipeline.rewards.base import Completions, as_scores


class GrammarJudge:
    """Judge points: polarity x intensity summed over clauses, less faults. See pipeline/data/README.md.

    An insulting clause is a fault.
    """

    networks: Sequence[Any] = ()
    insults = False
    """Whether an insulting clause is an opinion instead."""

    def __call__(self, completions: Completions) -> Tensor:
        texts = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([judge(prompt, text, self.insults).score for prompt, text in texts])


class HelpfulJudge(GrammarJudge):
    """The same, to whom an insulting clause is an opinion."""

    insults = True


class HarmlessJudge:
    """Minus the number of insulting words in the completion: at most 0. Empty text and gibberish harm nobody."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        texts = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([-float(insulting_words(prompt, text)) for prompt, text in texts])
