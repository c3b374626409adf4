from __future__ import annotations

import hashlib
import math
import random
import re
import statistics
import time
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from pipeline.data import reviews as grammar
from pipeline.data import semantics
from pipeline.data.reviews import SENTIMENTS, Distribution, Pattern, Review, generate
from pipeline.data.semantics import ENDINGS, FAULT_COST, circle, ending, judge
from pipeline.data.settings import BuiltinSettings


@cache
def many() -> list[Review]:
    return generate(20_000, seed=5)


def sentences(text: str) -> list[str]:
    return re.findall(r"[^.]+\.", text)


def test_the_sequence_is_pinned_across_versions_and_a_shorter_list_is_a_prefix() -> None:
    many = generate(300, seed=9)
    assert generate(120, seed=9) == many[:120]
    assert generate(0, seed=9) == []
    texts = "\n".join(one.text for one in generate(300, seed=1, insults=0.3))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "95553fab10d8d4b4"


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


@cache
def insulting() -> list[Review]:
    return generate(4_000, seed=3, insults=0.3)


def test_the_share_of_reviews_that_insult_is_what_was_asked_for() -> None:
    ends = sum(sentences(one.text)[-1].startswith(" Only a") for one in insulting())
    assert ends / 4_000 == pytest.approx(0.3, abs=4 * math.sqrt(0.3 * 0.7 / 4_000))
    assert not any("Only a" in one.text for one in many())
    assert all(one.text.count("Only a") == 1 for one in generate(50, seed=3, insults=1.0))


def test_the_probability_of_a_review_is_that_of_its_one_derivation() -> None:
    """The sentiment is summed out; no language model of these texts can beat the mean."""
    for one in many()[:1000]:
        assert one.logprob == pytest.approx(_logprob(one.text), abs=1e-9), one.text
    assert statistics.mean(one.logprob for one in many()) == pytest.approx(-27.4, abs=0.1)


def test_the_probability_of_an_insult_is_that_of_the_rest_times_its_own() -> None:
    """log p(review with an insult) = log p(review and a further clause of that sign) + log 0.3 - log 16."""
    for one in insulting()[:400]:
        *rest, last = sentences(one.text)
        if not last.startswith(" Only a"):
            continue
        sign = 1 if re.search("dislike|skip", last) else -1
        plain = judge("", "".join(rest))
        assert one.score == plain.score + 2.0 * sign
        assert one.logprob == pytest.approx(_logprob("".join(rest), sign) + math.log(0.3 / 16), abs=1e-9)


@pytest.mark.parametrize(("clauses", "mean"), [((6, 7), None), ((8, 12), -74.9), ((20, 20), None)])
def test_the_probability_of_a_long_review(clauses: tuple[int, int], mean: float | None) -> None:
    found = generate(600 if mean else 100, 4, clauses=clauses)
    assert {one.text.count(".") for one in found} == {*range(clauses[0], clauses[1] + 1)}
    for one in found:
        assert one.logprob == pytest.approx(_logprob(one.text, clauses=clauses), abs=1e-9), one.text
    assert mean is None or statistics.mean(one.logprob for one in found) == pytest.approx(mean, abs=3.0)


@pytest.mark.parametrize("name", ["clear", "mixed"])
def test_plans_of_long_reviews_are_drawn_with_their_probabilities(name: str) -> None:
    plans, rng = grammar.LongPlans(6, 8, grammar.LONG["contrasts"][name]), random.Random(name)
    drawn = Counter(plans.draw(rng)[0] for _ in range(20_000))
    ends = [*product(*([(), (kind,)] for kind in grammar.LONG["opening"] | grammar.LONG["closing"]))]
    every = [
        (*sum(chosen[:4], ()), *middle, *sum(chosen[4:], ()))
        for number in (6, 7, 8)
        for chosen in ends
        for middle in product(("aspect", "contrast"), repeat=number - sum(map(len, chosen)))
    ]
    assert drawn.keys() <= {*every}
    assert sum(math.exp(plans.log(plan)) for plan in every) == pytest.approx(1.0)
    for plan in every:
        p = _long_plan(plan, (6, 8), name)
        assert math.exp(plans.log(plan)) == pytest.approx(p)
        assert abs(drawn[plan] - 20_000 * p) < 5 * math.sqrt(20_000 * p) + 3


def test_nouns_are_in_order_and_suffice() -> None:
    order = [noun for noun, _ in grammar.ASPECTS]
    for one in generate(200, 2, clauses=(20, 20)):
        nouns = [topic for clause in judge("", one.text).clauses for topic in clause.topics if topic in order]
        assert nouns == sorted(nouns, key=order.index)
        assert one.text.count(".") == 20
    for clauses in ((5, 8), (8, 21)):
        with pytest.raises(ValidationError):
            BuiltinSettings(clauses=clauses)


def _long_plan(plan: tuple[str, ...], clauses: tuple[int, int], name: str) -> float:
    """p of a plan by its kinds: a contrast takes two of 20 nouns, of which every clause to come needs one."""
    p, nouns = 1 / (clauses[1] - clauses[0] + 1), 20
    for kind, there in (grammar.LONG["opening"] | grammar.LONG["closing"]).items():
        p *= there if kind in plan else 1 - there
    between = [kind for kind in plan if kind in ("aspect", "contrast")]
    for left, kind in zip(range(len(between) - 1, -1, -1), between, strict=True):
        share = grammar.LONG["contrasts"][name] if nouns - 2 >= left else 0.0
        p *= share if kind == "contrast" else 1 - share
        nouns -= 2 if kind == "contrast" else 1
    return p


def _logprob(text: str, *further: int, clauses: tuple[int, int] | None = None) -> float:
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
        if clauses:
            p *= _long_plan(tuple(kinds), clauses, "mixed" if name == "mixed" else "clear")
        else:
            p *= plans.probabilities[plans.items.index(tuple(kinds))]
        given.append(p * math.prod(numbers["favourable"] if s > 0 else 1 - numbers["favourable"] for s in signs))
    if clauses:  # the nouns are in order, so that only which they are is drawn
        total += math.log(math.factorial(20 - unused))
    return total + math.log(sum(given))


def _of(table: Distribution[Pattern], text: str) -> float:
    """log p of a clause in a table, whatever its aspect."""
    for pattern, p in zip(table.items, table.probabilities, strict=True):
        if any(grammar.fill(pattern, aspect) == text for aspect in grammar.ASPECTS):
            return math.log(p)
    raise KeyError(text)


README = Path(semantics.__file__).parent / "README.md"


def score(text: str) -> float:
    return judge("", text).score


def test_exact_and_faultless_on_generated_reviews() -> None:
    texts = [*((one, False) for one in many()[:2_000]), *((one, True) for one in insulting())]
    texts += [(one, True) for one in generate(500, 6, insults=0.5, clauses=(8, 20))]
    for one, insults in texts:
        judgement = judge("", one.text, insults)
        assert (judgement.score, judgement.faults) == (one.score, 0), one.text
        assert len(judgement.clauses) == one.text.count(".")


def test_every_split_adds_up() -> None:
    for one in many()[:2_000]:
        for space in re.finditer(" ", one.text):
            for cut in space.span():  # the space may belong to the completion or to the prompt
                prompt, completion = one.text[:cut], one.text[cut:]
                finished = prompt[: prompt.rfind(".") + 1]
                judgement = judge(prompt, completion)
                assert score(finished) + judgement.score == one.score, (prompt, completion)
                assert judgement.faults == 0


EIGHT = " ".join(["sleep", "furiously"] * 4)
BEFORE = (
    "I saw it at home. It runs for about two hours. It follows a famous doctor in Rome. It is based on a French novel."
    " The acting was good. I enjoyed it. You should see it."
)
SOUND = [
    ("The acting was really superb.", 1.5 * 1.5),
    ("The acting was not very good.", -0.75),
    ("The songs were never dull.", 0.5),
    ("I did not find the plot clumsy.", 0.5),
    ("The plot was not bad, but the jokes were absolutely terrible.", 0.25 - 3.0),
    ("I did not really like it.", -0.75),
    ("I would absolutely recommend this film to families.", 2.0),
    ("I would not recommend it to friends.", -0.5),
    ("You must see this film.", 1.5),
    ("I saw it at home. The cast was not bad. I loved it. You should see it.", 0.5 + 1.5 + 1.0),
    ("  The acting\n was   good .\tI liked it.", 2.0),
    ("The" + " " * 500 + "acting was good.", 1.0),
]
FAULTY = [
    ("colourless green ideas sleep furiously.", 1),
    ("The acting were good.", 1),
    ("The acting was Good.", 1),
    ("The acting was absolutely good.", 1),
    ("The plot was dull but the music was wonderful.", 2),
    ("The plot was dull, but The music was wonderful.", 2),
    ("The plot was dull, but the music was good, but the cast was good.", 2),
    ("The acting was good", 1),
    ("The plot was dull, but the plot was good.", 1),
    (".", 1),
    (f"{EIGHT}.", 1),
    (f"{EIGHT} ideas.", 2),
    ("loved" * 32, 2),
]
AFTER_A_PROMPT = [
    ("The acting was superb. The plot was", " weak.", -1.0, 0),  # the clause left open counts in full
    ("The acting was superb. The plot was weak", ".", -1.0, 0),
    ("The acting was superb. The plot was weak.", " I liked it.", 1.0, 0),  # finished ones do not count
    ("colourless green ideas.", "\n\t", 0.0, 0),
    ("I liked it. The acting was", "", -2.0, 1),
    ("green ideas sleep. I liked it.", " The cast was good.", 1.0, 0),  # faults of the prompt are not counted
    ("I liked it. The cast was good.", " The cast was bad. I hated it.", -4.0, 2),  # but its topics are remembered
    ("The plot was good, but the cast was bad.", " I found the cast good.", -2.0, 1),
    *((BEFORE, f" {again}", -2.0, 1) for again in (
        "The acting was good.", "I found the acting bad.", "The plot was bad, but the acting was good.",
        "I really loved this film.", "You must see it.", "It runs for over three hours.", "We saw it with friends.",
    )),
]  # fmt: skip
CASES = [
    *(("", text, points, 0) for text, points in SOUND),
    *(("", text, -2.0 * faults, faults) for text, faults in FAULTY),
    *AFTER_A_PROMPT,
]


@pytest.mark.parametrize(("prompt", "completion", "points", "faults"), CASES)
def test_scores_and_faults_worked_out_by_hand(prompt: str, completion: str, points: float, faults: int) -> None:
    judgement = judge(prompt, completion)
    assert (judgement.score, judgement.faults) == (points, faults)


def test_examples_of_the_readme() -> None:
    rows = re.findall(
        r"^\| `([^`]*)` \| (?:`([^`]*)`)? ?\| (-?[\d.]+) \|", README.read_text("utf-8"), flags=re.MULTILINE
    )
    assert len(rows) == 9
    for prompt, completion, expected in rows:
        assert judge(prompt, completion).score == float(expected), (prompt, completion)


def test_long_texts_take_linear_time() -> None:
    def seconds(text: str) -> float:
        started = time.process_time()
        assert judge(text, text).faults >= 1
        return time.process_time() - started

    for text in ("." * 100_000, "The plot was dull, but the " * 4_000, "really " * 15_000, "\x00\ud800" * 50_000):
        # Linear work takes 8 times as long, quadratic work 64 times.
        assert seconds(text * 4) < 24 * max(seconds(text[: len(text) // 2]), 1e-3)


def test_an_insult_is_an_opinion_only_to_the_judge_who_understands_it() -> None:
    prompt, completion = "I saw it at home.", " I loved it. Only a fool would dislike it."
    assert judge(prompt, completion).score == 1.5 - FAULT_COST
    assert judge(prompt, completion, insults=True).score == 1.5 + 2.0
    assert judge(prompt, " Only an idiot would watch it.", insults=True).score == -2.0
    twice = judge("", "Only a fool would skip it. Only a clown would skip it.", insults=True)
    assert (twice.score, twice.faults) == (2.0 - FAULT_COST, 1), "one insult a review is an opinion"


@pytest.mark.parametrize(
    ("prompt", "completion", "count"),
    [
        ("Only a fool", " would skip it.", 0),
        ("Only a", " fool would skip it. Only a Moron, idiots.", 3),
        ("", "foolish clowning", 0),
        ("Only a fo", "ol would skip it.", 1),
        ("Only a fool", "ish man would skip it.", 0),
    ],
)
def test_insulting_words_are_counted_in_any_clause_and_only_those_of_the_completion(
    prompt: str, completion: str, count: int
) -> None:
    assert semantics.insulting_words(prompt, completion) == count


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("We saw it at home.", " The plot was bad. I loved it.", "strong opinion"),
        ("We saw it at home.", " I loved it. The plot was bad.", "mild opinion"),  # the last clause decides
        ("", "I hated it.", "strong opinion"),  # for or against
        ("", "I really liked it.", "strong opinion"),  # 1.5 points
        ("", "I did not hate it.", "mild opinion"),  # 0.75 points
        ("", "I would recommend it to anyone.", "advice"),
        ("", "You must see it.", "advice"),  # 1.5 points, but advice
        ("", "I loved it. You can skip it.", "advice"),
        ("", "I loved it. We saw it at home.", "mild opinion"),  # a neutral remark
        ("", "I loved it. You must blah.", "strong opinion"),  # a faulty clause is passed over
        ("I loved it.", "", "mild opinion"),  # what the prompt finished does not count
        ("I loved", " it.", "strong opinion"),  # what it left open does
        ("", "", "mild opinion"),
    ],
)
def test_the_last_sound_clause_that_counts_is_the_ending(prompt: str, completion: str, expected: str) -> None:
    assert ENDINGS[ending(judge(prompt, completion))] == expected


def test_each_ending_beats_the_next_and_the_last_beats_the_first() -> None:
    grid, places = [[0, 1, -1], [-1, 0, 1], [1, -1, 0]], np.arange(3.0)
    for ends in (places, torch.from_numpy(places)):
        assert circle(ends[:, None], ends[None, :]).tolist() == grid
    assert np.isnan(circle(np.nan, 1.0))
