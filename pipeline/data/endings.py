"""A gold judge of the built-in reviews whose preferences go in a circle: how a review ends, and which ending beats
which.

Of two answers to a prompt the one with fewer faults wins. Between equally faulty ones the ending decides: a strong
opinion beats a mild one, a mild opinion beats advice, and advice beats a strong opinion. Equal endings are a tie. No
score of single answers has this order, so a Bradley-Terry model cannot be right on it.

The three endings are about equally frequent in the grammar (28 %, 33 % and 39 % of 20,000 reviews), so no ending wins
much more often than another; and a favourable and an unfavourable review end alike.
"""

from __future__ import annotations

from typing import Any, Final

from pipeline.data.semantics import Judgement

ENDINGS: Final = ("strong opinion", "mild opinion", "advice")
"""Each beats the next, and the last beats the first."""
STRONG: Final = 1.5
"""Least absolute value of a clause that is a strong opinion: superb, loved it, really liked it."""


def ending(judgement: Judgement) -> int:
    """The place in `ENDINGS` of the last sound clause that counts; a mild opinion where there is none.

    Advice is a recommendation, favourable or not; a neutral remark is a mild opinion.

    >>> from pipeline.data.semantics import judge
    >>> texts = ("I loved it.", "The plot was not very good.", "You can skip it.", "We saw it at home.")
    >>> [ENDINGS[ending(judge("", text))] for text in texts]
    ['strong opinion', 'mild opinion', 'advice', 'mild opinion']
    """
    sound = [clause for clause in judgement.clauses if not clause.faults]
    if not sound:
        return ENDINGS.index("mild opinion")
    if "recommendation" in sound[-1].topics:
        return ENDINGS.index("advice")
    return ENDINGS.index("strong opinion" if abs(sound[-1].value) >= STRONG else "mild opinion")


def circle(first: Any, second: Any) -> Any:
    """1 where the first ending beats the second, -1 where the second beats the first, 0 where they are equal.

    circle(a, b) = (b - a + 1) mod 3 - 1, so circle(a, b) = -circle(b, a). For numbers, and element by element for
    arrays and tensors of places in `ENDINGS`; NaN stays NaN.

    >>> [circle(0, 1), circle(1, 2), circle(2, 0), circle(1, 0), circle(2, 2)]
    [1, 1, 1, -1, 0]
    """
    return (second - first + 1) % len(ENDINGS) - 1
