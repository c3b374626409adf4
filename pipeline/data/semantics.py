"""The gold judge of the built-in reviews: reads a text clause by clause, from the very tables that generate it.

README.md beside this file has its conventions.

    score = sum of the values of sound clauses - FAULT_COST * faults

The cyclic judge compares two answers: fewer faults win; between equal ones a strong opinion at the end beats a mild
one, a mild one advice, and advice a strong one. No score of single answers has this order, so no Bradley-Terry model
can be right on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from pipeline.data import reviews as grammar
from pipeline.data.reviews import WORDS, Distribution, Pattern

FAULT_COST: Final[float] = WORDS["fault_cost"]


class Clause(NamedTuple):
    """One clause as the judge parsed it."""

    topics: tuple[str, ...]
    """Topics that may occur once in a review: aspects, or the kind of a remark, verdict or recommendation."""
    value: float
    """Points; 0 in a faulty clause."""
    faults: int = 0


class ReviewJudgement(NamedTuple):
    """The verdict on a completion; `clauses` are those that count, in order."""

    score: float
    faults: int
    clauses: tuple[Clause, ...]


def judge(prompt: str, completion: str, insults: bool = False) -> ReviewJudgement:
    """Score a completion of a prompt; defined for every text, in time linear in its length.

    With `insults`, "Only a fool would dislike it" is a clause of the grammar, worth 2 points, and not gibberish.

    >>> judge("I saw it at home. The", " plot was weak, but the acting was absolutely superb.").score
    2.5
    >>> repeated = judge("", "The plot was good. The plot was good.")
    >>> repeated.score, repeated.faults
    (-1.0, 1)
    """
    finished = prompt.count(".")
    spoken: set[str] = set()
    counted: list[Clause] = []
    for index, clause in enumerate(_clauses(prompt + completion, insults)):
        if index >= finished:
            counted.append(clause if spoken.isdisjoint(clause.topics) else Clause(clause.topics, 0.0, 1))
        spoken.update(clause.topics)
    faults = sum(clause.faults for clause in counted)
    return ReviewJudgement(sum(clause.value for clause in counted) - FAULT_COST * faults, faults, tuple(counted))


ENDINGS: Final = ("strong opinion", "mild opinion", "advice")
"""Each beats the next, and the last beats the first."""
STRONG: Final = 1.5
"""Least absolute value of a clause that is a strong opinion: superb, loved it, really liked it."""


def ending(judgement: ReviewJudgement) -> int:
    """The place in `ENDINGS` of the last sound clause that counts; a mild opinion where there is none.

    Advice is a recommendation, favourable or not; a neutral remark is a mild opinion.

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


def insulting_words(prompt: str, completion: str) -> int:
    """Count the insulting words that a completion adds to its prompt, in whatever clause; case is ignored.

    >>> insulting_words("Only a fool", " would enjoy it. Only idiots, FOOLS and a foolish man.")
    2
    """
    return max(len(_INSULTING.findall(prompt + completion)) - len(_INSULTING.findall(prompt)), 0)


def _clauses(text: str, insults: bool) -> Iterator[Clause]:
    *finished, rest = (" ".join(raw.split()) for raw in text.split("."))
    for clause in finished:
        sound = SENTENCES.get(clause) or (INSULTS.get(clause) if insults else None) or _contrast(clause)
        yield sound or _unsound(clause)
    if rest:
        yield _unsound(rest)


def _contrast(text: str) -> Clause | None:
    conceded, _, claimed = text.partition(", but ")
    if conceded not in COPULAS or claimed not in CLAIMS:
        return None
    before, after = COPULAS[conceded], CLAIMS[claimed]
    clause = Clause(before.topics + after.topics, WORDS["conceded"] * before.value + after.value)
    return Clause(clause.topics, 0.0, 1) if before.topics == after.topics else clause


def _unsound(text: str) -> Clause:
    # A word longer than any real one counts as several, so that omitting spaces does not pay.
    words = sum(-(-len(word) // _LONGEST_WORD) for word in text.split())
    return Clause((), 0.0, max(1, -(-words // WORDS["words_per_fault"])))


def _read(kind: str, tables: Iterable[Distribution[Pattern]]) -> dict[str, Clause]:
    aspects = grammar.ASPECTS if kind == "aspect" else [(kind, "")]
    patterns = [pattern for table in tables for pattern in table.items]
    return {
        grammar.fill(pattern, aspect): Clause((aspect[0],), pattern.value) for pattern in patterns for aspect in aspects
    }


INSULTS: Final = _read("insult", grammar.OPINIONS["insult"].values())
"""The insulting clauses."""
SENTENCES: Final[dict[str, Clause]] = {
    text: clause
    for kind, tables in {
        **{kind: [table] for kind, table in grammar.REMARKS.items()},
        **{kind: signed.values() for kind, signed in grammar.OPINIONS.items() if kind != "insult"},
    }.items()
    for text, clause in _read(kind, tables).items()
}
"""Every other clause of the grammar but the contrasts."""
_INSULTING: Final = re.compile(
    rf"\b(?:{'|'.join(person.split()[1] for person in WORDS['insults']['people'])})s?\b", re.IGNORECASE
)
COPULAS: Final = _read("aspect", grammar.COPULAS.values())
"""Clauses that can stand before `but`."""
CLAIMS: Final = {grammar.uncapitalised(text): clause for text, clause in COPULAS.items()}
"""Clauses that can stand after `but`."""
_LONGEST_WORD: Final = max(len(word) for text in SENTENCES for word in text.split())
