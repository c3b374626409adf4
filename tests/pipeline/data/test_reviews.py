"""The generator: determinism, form of the texts, and probabilities checked by ways that do not use its own sums."""

from __future__ import annotations

import hashlib
import math
import random
import re
import statistics
from functools import cache

import pytest

from pipeline.data import reviews as grammar
from pipeline.data import semantics
from pipeline.data import vocabulary as lexicon
from pipeline.data.reviews import Distribution, Pattern, Review, generate
from pipeline.data.vocabulary import SENTIMENTS


@cache
def reviews() -> list[Review]:
    return generate(20_000, seed=5)


def sentences(text: str) -> list[str]:
    return re.findall(r"[^.]+\.", text)


def test_same_seed_same_reviews_and_a_shorter_list_is_a_prefix() -> None:
    many = generate(300, seed=9)
    assert many == generate(300, seed=9)
    assert generate(120, seed=9) == many[:120]
    assert generate(40, seed=9, insults=0.0) == many[:40]
    assert generate(0, seed=9) == []
    assert {one.text for one in generate(300, seed=10)} != {one.text for one in many}


def test_the_sequence_is_pinned_across_versions() -> None:
    texts = "\n".join(one.text for one in generate(300, seed=1, insults=0.3))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "95553fab10d8d4b4"


PINNED = "It is based on a famous poem. The jokes were not clever, but the ending was really strong. I liked this film."


# ---- probabilities


def test_every_clause_has_one_reading() -> None:
    texts = [
        grammar.fill(pattern, aspect)
        for table in grammar.ASPECT_CLAUSES.values()
        for pattern in table.items
        for aspect in grammar.ASPECTS
    ]
    texts += [pattern.text for table in grammar.REMARKS.values() for pattern in table.items]
    texts += [
        pattern.text for signed in grammar.CLOSING.values() for table in signed.values() for pattern in table.items
    ]
    assert len(texts) == len(set(texts)) == len(semantics.SENTENCES)
    assert all(pattern.value * sign > 0 for sign, table in grammar.ASPECT_CLAUSES.items() for pattern in table.items)
    assert all(pattern.value * sign > 0 for sign, table in grammar.COPULAS.items() for pattern in table.items)
    assert all(
        p.value * sign > 0 for signed in grammar.CLOSING.values() for sign, table in signed.items() for p in table.items
    )


def test_a_table_draws_with_its_probabilities() -> None:
    class Fixed(random.Random):
        def __new__(cls, value: float) -> Fixed:
            return super().__new__(cls)

        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    table = Distribution([("a", 1.0), ("b", 2.0), ("c", 1.0)])
    drawn = [table.draw(Fixed(u))[0] for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999999999999999)]
    assert drawn == ["a", "a", "b", "b", "c", "c"]
    assert table.draw(Fixed(0.5))[1] == pytest.approx(math.log(0.5))


# --- reviews that insult -----------------------------------------------------------------------------------


@cache
def insulting() -> list[Review]:
    return generate(4_000, seed=3, insults=0.3)


def test_the_share_of_reviews_that_insult_is_what_was_asked_for() -> None:
    ends = sum(sentences(one.text)[-1].startswith(" Only a") for one in insulting())
    assert ends / 4_000 == pytest.approx(0.3, abs=4 * math.sqrt(0.3 * 0.7 / 4_000))
    assert not any("Only a" in one.text for one in reviews())
    assert all(one.text.count("Only a") == 1 for one in generate(50, seed=3, insults=1.0))


def test_the_helpful_judge_finds_the_score_of_every_review_that_insults() -> None:
    assert all(semantics.judge("", one.text, insults=True).score == one.score for one in insulting())
    assert all(semantics.judge("", one.text, insults=True).faults == 0 for one in insulting())


def test_the_probability_of_a_review_is_that_of_its_one_derivation() -> None:
    """With the sentiment summed out; its mean is what no language model of these texts can beat."""
    for one in reviews()[:1000]:
        assert one.logprob == pytest.approx(_logprob(one.text), abs=1e-9), one.text
    assert statistics.mean(one.logprob for one in reviews()) == pytest.approx(-27.4, abs=0.1)


def test_the_probability_of_an_insult_is_that_of_the_rest_times_its_own() -> None:
    """log p(review with an insult) = log p(review and a further clause of that sign) + log 0.3 - log 16."""
    for one in insulting()[:400]:
        *rest, last = sentences(one.text)
        if not last.startswith(" Only a"):
            continue
        sign = 1 if re.search("dislike|skip", last) else -1
        plain = semantics.judge("", "".join(rest))
        assert one.score == plain.score + 2.0 * sign
        assert one.logprob == pytest.approx(_logprob("".join(rest), sign) + math.log(0.3 / 16), abs=1e-9)


def _logprob(text: str, *further: int) -> float:
    """log p of a review without an insult, from its derivation, and of `further` signs under the same sentiment."""
    clauses = semantics.judge("", text).clauses
    total = 0.0
    unused = len(grammar.ASPECTS)
    signs = []
    kinds = []
    for clause in clauses:
        if ", but " in clause.text:
            before, after = clause.text.split(", but ")
            sign = 1 if semantics.CLAIMS[after].value > 0 else -1
            for part, way in ((before, -sign), (after[0].upper() + after[1:], sign)):
                total += _of(grammar.COPULAS[way], part) - math.log(unused)  # type: ignore[index]
                unused -= 1
            kinds.append("contrast")
            signs.append(sign)
        elif clause.topics[0] in grammar.REMARKS:
            kinds.append(clause.topics[0])
            total += _of(grammar.REMARKS[clause.topics[0]], clause.text)
        else:
            sign = 1 if clause.value > 0 else -1
            signs.append(sign)
            if clause.topics[0] in grammar.CLOSING:
                kinds.append(clause.topics[0])
                total += _of(grammar.CLOSING[clause.topics[0]][sign], clause.text)  # type: ignore[index]
            else:
                kinds.append("aspect")
                total += _of(grammar.ASPECT_CLAUSES[sign], clause.text) - math.log(unused)  # type: ignore[index]
                unused -= 1
    given = []
    for s in SENTIMENTS:
        plans = grammar.PLANS[s]
        p = lexicon.SENTIMENT_PROBABILITY[s] * plans.probabilities[plans.items.index(tuple(kinds))]
        for sign in (*signs, *further):
            p *= lexicon.FAVOURABLE[s] if sign > 0 else 1 - lexicon.FAVOURABLE[s]
        given.append(p)
    return total + math.log(sum(given))


def _of(table: Distribution[Pattern], text: str) -> float:
    """log p of a clause in a table, whatever its aspect."""
    for pattern, p in zip(table.items, table.probabilities, strict=True):
        if any(grammar.fill(pattern, aspect) == text for aspect in grammar.ASPECTS):
            return math.log(p)
    raise KeyError(text)
