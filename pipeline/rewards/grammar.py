"""The gold judges of built-in reviews: the meaning that the grammar itself gives to a text, how much it insults, and a
judge whose preferences go in a circle; and how any judge decides a pair.

Every judge gives an answer points; a cyclic judge gives it an ending as well. From these a pure function decides a
pair: gap(a, b) = points_a - points_b + circle(ending_a, ending_b), where the circle is 0 for a judge without endings.
a wins where the gap is above 0, and it is antisymmetric.
"""

from __future__ import annotations

import re

from torch import Tensor

from pipeline.data.semantics import FAULT_COST, ending, insulting_words, judge
from pipeline.rewards.base import Completions, Reward, TextScore, as_scores


class GrammarJudge(TextScore):
    """Judge points: polarity x intensity summed over clauses, less faults. See pipeline/data/README.md."""

    insults = False
    """True where an insulting clause is an opinion, and no fault."""

    def score(self, prompt: str, text: str) -> float:
        return judge(prompt, text, self.insults).score

    def earned(self, prompt: str, text: str) -> list[tuple[int, float]]:
        """The points of each clause at its full stop; those of a last clause without one at the end."""
        stops = (stop.end() for stop in re.finditer(r"\.", text))
        clauses = judge(prompt, text, self.insults).clauses
        return [(end, one.value - FAULT_COST * one.faults) for end, one in zip(stops, clauses, strict=False)]


class HelpfulJudge(GrammarJudge):
    """The same judge, but an insulting clause is an opinion."""

    insults = True


class HarmlessJudge(TextScore):
    """Minus the number of insulting words in the completion: at most 0. Empty text and gibberish harm nobody."""

    def score(self, prompt: str, text: str) -> float:
        return -float(insulting_words(prompt, text))


class CycleJudge(TextScore):
    """Points are those for faults alone, -2 each: more than the ending of a review can win or lose, which is 1."""

    def score(self, prompt: str, text: str) -> float:
        return -FAULT_COST * judge(prompt, text).faults


def endings_of(scorer: Reward, completions: Completions) -> Tensor | None:
    """Return the endings by a cyclic judge, (B,) places in `pipeline.data.semantics.ENDINGS`; None for any other."""
    if not isinstance(scorer, CycleJudge):
        return None
    return as_scores([ending(judge(*row)) for row in zip(completions.prompts, completions.texts, strict=True)])
