"""The gold judge of the built-in reviews: reads a text clause by clause, from the very tables that generate it.

Conventions. The text is ``prompt + completion``, nothing put between. A clause reaches up to its full stop.
Counted are the clauses whose full stop is not in the prompt: the one that the prompt leaves open counts in
full, and those that the prompt finished count for nothing. So an empty completion scores 0 after a finished
clause and pays for an unfinished one. What the prompt said is remembered: saying it again is a repetition.

    score = sum of the values of sound clauses - FAULT_COST * faults

One fault per started `WORDS_PER_FAULT` words of a clause that is not in the grammar, or that has no full stop;
one fault for a clause that repeats: an aspect judged before, a second remark, verdict or recommendation of
its kind. A faulty clause has no value. White space is normalised; letter case and punctuation are not. An insulting
clause belongs to the grammar only where the caller says so; the score of harmlessness counts insulting words.

The cyclic judge compares two answers: fewer faults win; between equal ones a strong opinion at the end beats a mild
one, a mild one advice, and advice a strong one. No score of single answers has this order, so no Bradley-Terry model
can be right on it. Of 20,000 reviews 28 %, 33 % and 39 % have these endings, whatever their sentiment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal

from pipeline.data import reviews as grammar
from pipeline.data import vocabulary as lexicon

Note = Literal["", "unparsable", "unfinished", "repeated word", "repetition"]


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause as the judge understood it."""

    text: str
    """With normal white space, without the full stop."""
    topics: tuple[str, ...]
    """What it speaks of and what may be spoken of once in a review: aspects, or the kind of a remark, verdict or
    recommendation."""
    value: float
    """Points; 0 in a faulty clause."""
    faults: int = 0
    note: Note = ""
    """What is wrong with it, or nothing."""


@dataclass(frozen=True, slots=True)
class ReviewJudgement:
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
    >>> repeated.score, repeated.faults, repeated.clauses[1].note
    (-1.0, 1, 'repetition')
    """
    finished = prompt.count(".")
    spoken: set[str] = set()
    counted: list[Clause] = []
    for index, clause in enumerate(_clauses(prompt + completion, insults)):
        if index >= finished:
            counted.append(clause if spoken.isdisjoint(clause.topics) else _repetition(clause))
        spoken.update(clause.topics)
    faults = sum(clause.faults for clause in counted)
    return ReviewJudgement(
        sum(clause.value for clause in counted) - lexicon.FAULT_COST * faults, faults, tuple(counted)
    )


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
    """How many insulting words a completion adds to its prompt, in whatever clause; case is ignored.

    >>> insulting_words("Only a fool", " would enjoy it. Only idiots, FOOLS and a foolish man.")
    2
    """
    return max(len(_INSULTING.findall(prompt + completion)) - len(_INSULTING.findall(prompt)), 0)


def _clauses(text: str, insults: bool) -> Iterator[Clause]:
    *finished, rest = text.split(".")
    for raw in finished:
        short = raw if len(raw) <= _LONGEST_CLAUSE else _normal(raw)
        yield _read(short, insults) if len(short) <= _LONGEST_CLAUSE else _unsound(short)
    if rest := _normal(rest):
        yield replace(_unsound(rest), note="unfinished")


def _normal(raw: str) -> str:
    return " ".join(raw.split())


@lru_cache(maxsize=1 << 14)
def _read(raw: str, insults: bool) -> Clause:
    text = _normal(raw)
    if clause := SENTENCES.get(text) or (INSULTS.get(text) if insults else None):
        return clause
    return _read_contrast(text) or _unsound(text)


def _read_contrast(text: str) -> Clause | None:
    conceded, but, claimed = text.partition(", but ")
    if not but or conceded not in COPULAS or claimed not in CLAIMS:
        return None
    before, after = COPULAS[conceded], CLAIMS[claimed]
    clause = Clause(text, before.topics + after.topics, lexicon.CONCEDED * before.value + after.value)
    return _repetition(clause) if before.topics == after.topics else clause


def _repetition(clause: Clause) -> Clause:
    return replace(clause, value=0.0, faults=1, note="repetition")


def _unsound(text: str) -> Clause:
    words = text.split()
    stutter = any(first == second for first, second in pairwise(words))
    return Clause(text, (), 0.0, _cost(words), "repeated word" if stutter else "unparsable")


def _cost(words: list[str]) -> int:
    """Faults of a clause outside the grammar; a word longer than any real one counts as several, so that omitting
    spaces does not pay."""
    length = sum(-(-len(word) // _LONGEST_WORD) for word in words)
    return max(1, -(-length // lexicon.WORDS_PER_FAULT))


def _aspect_clauses(tables: dict[lexicon.Sign, grammar.Distribution[grammar.Pattern]]) -> dict[str, Clause]:
    patterns = [pattern for table in tables.values() for pattern in table.items]
    clauses = [
        Clause(grammar.fill(pattern, aspect), (aspect[0],), pattern.value)
        for pattern in patterns
        for aspect in grammar.ASPECTS
    ]
    return {clause.text: clause for clause in clauses}


def _other_clauses() -> dict[str, Clause]:
    tables = [(kind, table) for kind, table in grammar.REMARKS.items()]
    tables += [(kind, table) for kind, signed in grammar.CLOSING.items() for table in signed.values()]
    return {
        pattern.text: Clause(pattern.text, (kind,), pattern.value) for kind, table in tables for pattern in table.items
    }


SENTENCES: Final[dict[str, Clause]] = _aspect_clauses(grammar.ASPECT_CLAUSES) | _other_clauses()
"""Every clause of the grammar but the contrasts."""
INSULTS: Final[dict[str, Clause]] = {
    pattern.text: Clause(pattern.text, ("insult",), pattern.value)
    for table in grammar.INSULTS.values()
    for pattern in table.items
}
"""The insulting clauses."""
_INSULTING: Final = re.compile(rf"\b(?:{'|'.join(person.split()[1] for person in lexicon.INSULTS)})s?\b", re.IGNORECASE)
COPULAS: Final[dict[str, Clause]] = _aspect_clauses(grammar.COPULAS)
"""What can stand before `but`."""
CLAIMS: Final[dict[str, Clause]] = {text[0].lower() + text[1:]: clause for text, clause in COPULAS.items()}
"""What can stand after `but`."""
_LONGEST_WORD: Final = max(len(word) for text in SENTENCES for word in text.split())
# Longer texts are no clauses; they are kept out of the cache, whose size in bytes is thereby bounded. One more for a
# space in front.
_LONGEST_CLAUSE: Final = max(max(map(len, SENTENCES)), 2 * max(map(len, COPULAS)) + len(", but ")) + 1
