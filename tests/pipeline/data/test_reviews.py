"""The generator: determinism, form of the texts, and probabilities checked by ways that do not use its own sums."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.data import reviews as grammar
from pipeline.data import semantics
from pipeline.data.reviews import SENTIMENTS, Distribution, Pattern, Review, generate


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


# ---- probabilities


def test_every_clause_has_one_reading() -> None:
    signed = [item for kind, tables in grammar.OPINIONS.items() if kind != "insult" for item in tables.items()]
    texts = {
        grammar.fill(pattern, aspect)
        for table in [*grammar.REMARKS.values(), *(table for _, table in signed)]
        for pattern in table.items
        for aspect in grammar.ASPECTS
    }
    patterns = [pattern for table in grammar.REMARKS.values() for pattern in table.items]
    patterns += [pattern for _, table in signed for pattern in table.items]
    assert sum(20 if "{noun}" in pattern.text else 1 for pattern in patterns) == len(texts) == len(semantics.SENTENCES)
    signed += grammar.COPULAS.items()
    assert all(pattern.value * sign > 0 for sign, table in signed for pattern in table.items)


def test_a_table_draws_with_its_probabilities() -> None:
    def fixed(value: float) -> Any:
        return SimpleNamespace(random=lambda: value)

    table = Distribution([("a", 1.0), ("b", 2.0), ("c", 1.0)])
    drawn = [table.draw(fixed(u))[0] for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999999999999999)]
    assert drawn == ["a", "a", "b", "b", "c", "c"]
    assert table.draw(fixed(0.5))[1] == pytest.approx(math.log(0.5))


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
    for one in insulting():
        judgement = semantics.judge("", one.text, insults=True)
        assert (judgement.score, judgement.faults) == (one.score, 0)


def test_the_probability_of_a_review_is_that_of_its_one_derivation() -> None:
    """The sentiment is summed out; no language model of these texts can beat the mean."""
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
    total, unused, signs, kinds = 0.0, len(grammar.ASPECTS), list(further), list[str]()
    for clause in text.removesuffix(".").split(". "):
        if ", but " in clause:
            before, after = clause.split(", but ")
            kind, sign = "contrast", 1 if semantics.CLAIMS[after].value > 0 else -1
            for part, way in ((before, -sign), (after[0].upper() + after[1:], sign)):
                total += _of(grammar.COPULAS[way], part) - math.log(unused)
                unused -= 1
        else:
            read = semantics.SENTENCES[clause]
            kind, sign = read.topics[0], 1 if read.value > 0 else -1
            if kind in grammar.REMARKS:
                kinds.append(kind)
                total += _of(grammar.REMARKS[kind], clause)
                continue
            if kind not in grammar.OPINIONS:
                kind = "aspect"
                total -= math.log(unused)
                unused -= 1
            total += _of(grammar.OPINIONS[kind][sign], clause)
        kinds.append(kind)
        signs.append(sign)
    given = []
    for name, numbers in SENTIMENTS.items():
        plans, p = grammar.PLANS[name], numbers["probability"]
        p *= plans.probabilities[plans.items.index(tuple(kinds))]
        given.append(p * math.prod(numbers["favourable"] if s > 0 else 1 - numbers["favourable"] for s in signs))
    return total + math.log(sum(given))


def _of(table: Distribution[Pattern], text: str) -> float:
    """log p of a clause in a table, whatever its aspect."""
    for pattern, p in zip(table.items, table.probabilities, strict=True):
        if any(grammar.fill(pattern, aspect) == text for aspect in grammar.ASPECTS):
            return math.log(p)
    raise KeyError(text)
