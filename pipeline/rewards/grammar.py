"""The gold judges of built-in reviews: the meaning that the grammar itself gives to a text, how much it insults, and a
judge whose preferences go in a circle; and how any judge decides a pair.

Every judge gives an answer points; a cyclic judge gives it an ending as well. From these a pure function decides a
pair: gap(a, b) = points_a - points_b + circle(ending_a, ending_b), where the circle is 0 for a judge without endings.
a wins where the gap is above 0, and it is antisymmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.data.semantics import FAULT_COST, ending, insulting_words, judge
from pipeline.rewards.base import Completions, Reward, as_scores


class GrammarJudge:
    """Judge points: polarity x intensity summed over clauses, less faults. See pipeline/data/README.md.

    An insulting clause is a fault.
    """

    networks: Sequence[Any] = ()
    insults = False
    """True where an insulting clause is an opinion instead."""

    def __call__(self, completions: Completions) -> Tensor:
        texts = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([judge(prompt, text, self.insults).score for prompt, text in texts])


class HelpfulJudge(GrammarJudge):
    """The same judge, but an insulting clause is an opinion."""

    insults = True


class HarmlessJudge:
    """Minus the number of insulting words in the completion: at most 0. Empty text and gibberish harm nobody."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        texts = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([-float(insulting_words(prompt, text)) for prompt, text in texts])


class CycleJudge:
    """Points are those for faults alone, -2 each: more than the ending of a review can win or lose, which is 1."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        pairs = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([-FAULT_COST * judge(prompt, text).faults for prompt, text in pairs])

    def endings(self, completions: Completions) -> Tensor:
        """(B,) float32, places in `pipeline.data.semantics.ENDINGS`."""
        pairs = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([ending(judge(prompt, text)) for prompt, text in pairs])


def endings_of(judge: Reward, completions: Completions) -> Tensor | None:
    """Return the endings (B,) by a cyclic judge; None for any other judge."""
    return judge.endings(completions) if isinstance(judge, CycleJudge) else None
