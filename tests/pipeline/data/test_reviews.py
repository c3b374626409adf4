"""The generator: determinism, form of the texts, and probabilities checked by ways that do not use its own sums."""

from __future__ import annotations

import doctest
import math
import random
import re
import statistics
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from pipeline.data import reviews as grammar
from pipeline.data import semantics
from pipeline.data import vocabulary as lexicon
from pipeline.data.reviews import Distribution, Pattern, Review, count_reviews, generate
from pipeline.data.vocabulary import SENTIMENTS


@cache
def reviews() -> list[Review]:
    return generate(20_000, seed=5)


def sentences(text: str) -> list[str]:
    return re.findall(r"[^.]+\.", text)


def plan_weights() -> tuple[float, float]:
    """Sums of the two columns of weights."""
    return math.fsum(clear for _, clear, _ in lexicon.PLANS), math.fsum(mixed for _, _, mixed in lexicon.PLANS)


def test_same_seed_same_reviews_and_a_shorter_list_is_a_prefix() -> None:
    many = generate(300, seed=9)
    assert many == generate(300, seed=9)
    assert generate(120, seed=9) == many[:120]
    assert generate(40, seed=9, insults=0.0) == many[:40]
    assert generate(0, seed=9) == []
    assert {one.text for one in generate(300, seed=10)} != {one.text for one in many}


def test_the_sequence_is_pinned_across_versions() -> None:
    assert generate(1, seed=0)[0].text == PINNED


PINNED = "It is based on a famous poem. The jokes were not clever, but the ending was really strong. I liked this film."


@pytest.mark.parametrize(
    ("n", "insults", "says"),
    [
        (-1, 0.0, "n = -1: give a number of reviews from 0 to"),
        (10**18, 0.0, "give a number of reviews from 0 to"),
        (1, -0.1, "give the share of reviews that insult, from 0 to 1"),
        (1, 1.1, "give the share of reviews that insult, from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(n: int, insults: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        generate(n, seed=0, insults=insults)


def test_a_repeated_draw_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(
        [*[Review("a", "mixed", 0.0, -1.0)] * 3, Review("b", "mixed", 0.0, -1.0), Review("c", "mixed", 0.0, -1.0)]
    )
    monkeypatch.setattr(grammar, "_review", lambda rng, insults: next(drawn))
    assert [one.text for one in generate(3, seed=0)] == ["a", "b", "c"]


def test_texts_are_written_as_people_write() -> None:
    for one in reviews()[:3000]:
        assert re.fullmatch(r"([A-Z][A-Za-z]*( [A-Za-z]+,?)+\. ?)+(?<=\.)", one.text), one.text
        assert 3 <= len(sentences(one.text)) <= 5
        assert all(sentence.count(",") == sentence.count(", but ") <= 1 for sentence in sentences(one.text))
        words = one.text.replace(".", "").replace(",", "").split()
        assert not any(left == right for left, right in pairwise(words))


def test_no_review_repeats_itself() -> None:
    for one in reviews()[:3000]:
        topics = [topic for clause in semantics.judge("", one.text).clauses for topic in clause.topics]
        assert len(topics) == len(set(topics)), one.text
        assert len(set(sentences(one.text))) == len(sentences(one.text))


def test_lengths_suit_a_completion_of_32_tokens() -> None:
    lengths = [len(one.text.split()) for one in reviews()]
    assert 20 < statistics.mean(lengths) < 25
    assert min(lengths) >= 15
    assert max(lengths) <= 37
    assert statistics.fmean(18 <= length <= 32 for length in lengths) > 0.95
    # words, full stops and commas are tokens of their own, and so is the end of the text
    tokens = [
        length - 3 + one.text.count(".") + one.text.count(",") + 1
        for length, one in zip(lengths, reviews(), strict=True)
    ]
    assert statistics.fmean(count > 32 for count in tokens) < 0.02


def test_scores_follow_the_sentiment() -> None:
    by_sentiment = {s: [one.score for one in reviews() if one.sentiment == s] for s in SENTIMENTS}
    means = {s: statistics.mean(scores) for s, scores in by_sentiment.items()}
    assert means["positive"] > 2.0 > 0.5 > abs(means["mixed"])
    assert means["negative"] < -2.0
    medians = [statistics.median(by_sentiment[s]) for s in ("positive", "mixed", "negative")]
    assert medians == sorted(medians, reverse=True)
    assert len({one.score for one in reviews()}) > 50
    shares = Counter(one.sentiment for one in reviews())
    assert all(shares[s] / 20_000 == pytest.approx(lexicon.SENTIMENT_PROBABILITY[s], abs=0.015) for s in SENTIMENTS)


# ---- probabilities


def test_tables_are_distributions_over_distinct_items() -> None:
    tables: list[Distribution[Pattern]] = [
        *grammar.REMARKS.values(),
        *grammar.ASPECT_CLAUSES.values(),
        *grammar.COPULAS.values(),
    ]
    tables += [table for signed in grammar.CLOSING.values() for table in signed.values()]
    for table in tables:
        assert math.fsum(table.probabilities) == pytest.approx(1.0, abs=1e-12)
        assert min(table.probabilities) > 0
        assert len({pattern.text for pattern in table.items}) == len(table.items)
    for plans in grammar.PLANS.values():
        assert math.fsum(plans.probabilities) == pytest.approx(1.0, abs=1e-12)
        assert len(set(plans.items)) == len(plans.items)
    assert math.fsum(lexicon.SENTIMENT_PROBABILITY.values()) == pytest.approx(1.0, abs=1e-12)


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


def test_logprob_of_one_review_by_hand() -> None:
    review = generate(1, seed=0)[0]
    assert review.text == PINNED
    clear, mixed = plan_weights()
    remark = 1 / (4 * 4)
    aspects = 1 / 20 / 19
    # the weights of the copula forms sum to 100, those of the verdict forms too
    not_clever, really_strong = 10 / 100 / 9, 9 / 100 / 9
    liked_this_film = 22 / 100 / 2 / 2
    given = 0.4 * 4 / clear * (0.875**2 + 0.125**2) + 0.2 * 8 / mixed * 0.5**2
    assert review.logprob == pytest.approx(
        math.log(remark * aspects * not_clever * really_strong * liked_this_film * given), abs=1e-9
    )
    assert review.score == 0.5 * -0.5 + 1.5 + 1


def test_frequencies_of_openers_agree_with_the_grammar() -> None:
    texts = [one.text for one in reviews()]
    clear, mixed = plan_weights()
    opens = dict.fromkeys(("occasion", "premise", "runtime", "origin"), 0.0)
    for plan, a, b in lexicon.PLANS:
        if (kind := plan.split()[0]) in opens:
            opens[kind] += 0.8 * a / clear + 0.2 * b / mixed
    expected = {
        "I saw it ": opens["occasion"] / 8,
        "We watched this film with my sister": opens["occasion"] / 8 / 6,
        "It runs for about ": opens["runtime"] / 4,
        "It follows a lonely farmer in ": opens["premise"] / 24,
        "It is based on a ": opens["origin"],
    }
    for prefix, p in expected.items():
        share = statistics.fmean(text.startswith(prefix) for text in texts)
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(texts))), prefix


def test_shares_of_the_ways_to_say_it() -> None:
    clauses = [sentence.strip() for one in reviews() for sentence in sentences(one.text) if "," not in sentence]
    found = [clause for clause in clauses if re.match("I found|I did not find", clause)]
    copulas = [clause for clause in clauses if clause.startswith("The ")]
    expected = {
        "I found": (len(found), len(found) + len(copulas), lexicon.FOUND_SHARE),
        "did not find": (sum("did not" in clause for clause in found), len(found), 0.15),
        "was never": (sum(" never " in clause for clause in copulas), len(copulas), 0.05),
        "was absolutely": (sum(" absolutely " in clause for clause in copulas), len(copulas), 0.10),
    }
    advice = [clause for clause in clauses if re.match("I would|You", clause)]
    expected["I would"] = (sum(clause.startswith("I would") for clause in advice), len(advice), lexicon.RECOMMEND_SHARE)
    for name, (hits, total, p) in expected.items():
        assert hits / total == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / total)), name


def test_count_agrees_with_pairs_and_triples_counted_one_by_one() -> None:
    clauses = [clause for clause in semantics.SENTENCES.values() if clause.topics[0] in dict(grammar.ASPECTS)]
    by_topic = Counter(clause.topics[0] for clause in clauses)
    pairs = sum(by_topic[a] * by_topic[b] for a in by_topic for b in by_topic if a != b)
    assert grammar._count_plan(("aspect", "aspect")) == pairs
    halves = Counter((clause.topics[0], clause.value > 0) for clause in semantics.COPULAS.values())
    contrasts = sum(m * n for (a, p), m in halves.items() for (b, q), n in halves.items() if a != b and p != q)
    assert grammar._count_plan(("contrast",)) == contrasts
    assert grammar._count_plan(("runtime",)) == 12
    assert grammar._count_plan(("premise", "verdict")) == 120 * sum(
        c.topics == ("verdict",) for c in semantics.SENTENCES.values()
    )
    assert count_reviews() == sum(grammar._count_plan(tuple(plan.split())) for plan, _, _ in lexicon.PLANS)
    assert 10**14 < count_reviews() < 10**15


def test_documentation_runs() -> None:
    assert doctest.testmod(grammar).attempted >= 1
    assert doctest.testmod(grammar).failed == 0


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
