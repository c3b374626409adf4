from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.rewards.fluency import (
    FEWEST,
    RULES,
    FluencyGuard,
    LexiconReward,
    Reading,
    Thresholds,
    copied,
    faults,
    order,
    phrases_of,
    thresholds_of,
    words_of,
)
from pipeline.rewards.ngrams import LARGEST_VOCABULARY, NGrams

LETTERS = " abcdefghijklmnopqrstuvwxyz."


def letters(text: str, **_: Any) -> dict[str, Any]:
    """A tokenizer of pairs of letters: a prompt can end within a token."""
    starts = range(0, len(text), 2)
    ids = [1 + 28 * LETTERS.index(text[at]) + LETTERS.index(text[at + 1 : at + 2] or " ") for at in starts]
    return {"input_ids": ids, "offset_mapping": [(at, min(at + 2, len(text))) for at in starts]}


TEXTS = ["the film is good.", "the plot is bad. ", "the cast is fun. "]


@pytest.fixture(scope="module")
def model() -> NGrams:
    return NGrams.fit([letters(text)["input_ids"] for text in TEXTS], 800, 0)


LAX: Thresholds = {name: (99.0 if rule.above else -99.0,) for name, rule in RULES.items()}
"""Thresholds that no text is beyond."""


def guard(model: NGrams, length: int = 8, **bounds: float) -> FluencyGuard:
    thresholds = {**LAX, **{name: (bound,) for name, bound in bounds.items()}}
    return FluencyGuard(letters, model, phrases_of([]), LexiconReward(), length, thresholds)


def test_a_reading_is_that_of_the_completion_after_its_prompt(model: NGrams) -> None:
    read = guard(model).read("the fi", "lm is ", False)
    expected = np.log(model.probabilities(letters("the film is ")["input_ids"], 3))
    assert read["fluency"].tolist() == pytest.approx([expected[0], expected[:2].mean(), expected.mean()])
    assert not len(read["end"])
    within = guard(model).read("the f", "ilm is ", False)
    from_the_cut = np.log(model.probabilities(letters("the film is ")["input_ids"], 2))
    assert within["fluency"].tolist() == pytest.approx([from_the_cut[:n].mean() for n in (1, 2, 3, 4)])


def test_the_end_is_judged_where_the_text_ended_by_itself(model: NGrams) -> None:
    whole = letters("the film is good.")["input_ids"]
    good, early = (float(guard(model).read("the fi", rest, True)["end"][0]) for rest in ("lm is good.", "lm is "))
    assert good == pytest.approx(math.log(model.probabilities([*whole, 0], len(whole))[0]))
    assert early < good
    between, praised = guard(model, unended=(good + early) / 2), ("the fi", "lm is good.", True)
    assert between.score("the fi", "lm is ", True) == -2.0, "below every score of a text without faults"
    assert between.score(*praised) == LexiconReward().score("the film", " is good.") > 0
    assert between.faults("the fi", "lm is ", False) == between.faults(*praised) == []
    strict = guard(model, unended=0.0)
    assert strict.faults("the fi", "", True) == ["unended"], "an empty completion has an end"
    assert strict.faults("the fi", "", False) == []
    assert guard(model, thin=0.1).faults("the fi", "", False) == ["thin"]


def test_every_rule_counts_by_itself() -> None:
    bounds: Thresholds = dict.fromkeys(RULES, (0.25, 0.5))
    for name, rule in RULES.items():
        within: Reading = {one.measure: np.array([9.0, 0.5]) for one in RULES.values()}
        assert faults(within, bounds) == [], "on a threshold is not beyond it"
        beyond = {**within, rule.measure: np.array([0.5, 0.6 if rule.above else 0.4])}
        assert faults(beyond, bounds) == [name], "by the threshold of the length"
        longer = {**within, rule.measure: np.array([0.5, 0.5, 0.6 if rule.above else 0.4])}
        assert faults(longer, bounds) == [name], "the last one holds for all longer texts"
        assert faults({**within, rule.measure: np.zeros(0)}, bounds) == [], "nothing to judge"


def test_thresholds_are_those_of_their_length() -> None:
    def text(number: float, length: int) -> Reading:
        return {rule.measure: np.arange(1.0, length + 1) * number for rule in RULES.values()}

    texts = [text(float(n), 3) for n in range(199)] + [text(500.0, 1)]
    found = thresholds_of(texts)
    for name, rule in RULES.items():
        k = int(201 * rule.share + 1e-9)
        first = 200.0 - k if rule.above else k - 1.0
        assert found[name][0] == pytest.approx(first), name
        assert len(found[name]) == 3
    assert found["unlikely"] == (1.0, 2.0, 3.0), "the second lowest of 200 and of 199"
    assert len(thresholds_of([*texts[: FEWEST - 1], text(1.0, 1)])["thin"]) == 1, "more tokens have too few texts"
    with pytest.raises(ValueError, match="98 values give no threshold"):
        thresholds_of(texts[: FEWEST - 1])


def test_order_is_what_words_gain_over_the_mean_of_all_their_orders(model: NGrams) -> None:
    words = [letters(word)["input_ids"] for word in ("the ", "film", "is good.", "cast")]
    before = [5]

    def nats(some: Sequence[list[int]]) -> float:
        row = [*before, *(token for word in some for token in word)]
        starts = np.cumsum([1, *map(len, some)])[:-1]
        return sum(float(np.log(model.following(np.array([row[at - 1]]), np.array([row[at]]))[0, 0])) for at in starts)

    row = [*before, *(token for word in words for token in word)]
    found = order(model, row, np.cumsum([1, *map(len, words)])[:-1].tolist())
    for first in (2, 3, 4):
        orders = [nats(some) for some in itertools.permutations(words[:first])]
        assert found[first - 1] == pytest.approx((nats(words[:first]) - np.mean(orders)) / first)
    assert found[0] == 0, "one word has one order"
    assert order(model, row, []).tolist() == []
    read = guard(model).read("the film ", "is good.", True)
    tokens = letters("the film is good.")["input_ids"]
    assert read["order"].tolist() == order(model, tokens, [4, 6]).tolist(), "a word may begin within a token"
    assert read["content"].tolist() == pytest.approx([-np.log(model.probabilities(tokens, 4)).sum()])


def test_copied_words_lie_in_known_phrases() -> None:
    known = phrases_of(["One of the best films of all time.", "short text"])

    def share(prompt: str, completion: str) -> float:
        before, words = words_of(prompt + completion, len(prompt))
        found = copied(known, words, before)
        return float(found[-1]) if len(found) else -1.0

    assert share("", "this is one of the best, FILMS of the year") == 0.6
    assert share("one of the", " best films indeed") == pytest.approx(2 / 3), "a phrase may begin in the prompt"
    assert share("one of the be", "st films") == 1.0, "and a word"
    assert share("one of", " time") == share("", "the films of all") == 0
    assert share("", "") == -1
    assert copied(phrases_of([]), ["one", "of", "the", "best"], []).tolist() == [0, 0, 0, 0]


END, A, B = 0, 1, 2
ROWS = [[A, B], [A, A]]
SMALL = NGrams.fit(ROWS, 3, END)


def test_probabilities_by_hand() -> None:
    # Tokens before: N(end) = 2, N(a) = 2, N(b) = 1. P(end) = P(a) = (1.25 + 0.75) / 5, P(b) = (0.25 + 0.75) / 5.
    # P(a | end) = 0.25 + 0.75 x 0.4 = 0.55; P(a | end end) = (1.25 + 0.75 x 0.55) / 2.
    # P(b | a) = (0.25 + 0.75 x 3 x 0.2) / 3; P(b | end a) = (0.25 + 0.75 x 2 x P(b | a)) / 2.
    assert SMALL.probabilities([A, B]) == pytest.approx([0.83125, 0.3])
    assert SMALL.probabilities([A, A], 1) == pytest.approx([0.4125])
    assert SMALL.probabilities([A, END], 1) == pytest.approx([0.2875]), "the end of a text is predicted, too"
    assert SMALL.probabilities([B, B, END], 2) == pytest.approx([0.55]), (
        "a context never seen gives way to a shorter one"
    )


def test_probabilities_sum_to_1_with_random_texts_and_tokens_never_seen() -> None:
    rng = np.random.default_rng(0)
    model = NGrams.fit([rng.integers(1, 20, size=n).tolist() for n in (30, 5, 12, 50)], 25, END)
    for context in rng.integers(0, 25, size=(20, 2)).tolist():
        assert sum(model.probabilities([*context, token], 2)[0] for token in range(25)) == pytest.approx(1.0, abs=1e-12)


def test_the_order_of_the_texts_and_the_file_change_nothing(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "one.safetensors")
    NGrams.fit(reversed(ROWS), 3, END).save(tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    row = [A, B, B, A, END]
    assert NGrams.load(tmp_path / "one.safetensors").probabilities(row).tolist() == SMALL.probabilities(row).tolist()


def test_tokens_of_a_large_vocabulary_are_not_confused() -> None:
    last = LARGEST_VOCABULARY - 1
    model = NGrams.fit([[last, last - 1, last]], LARGEST_VOCABULARY, END)
    assert model.probabilities([last, last - 1, last], 2)[0] > 0.25
    assert model.probabilities([last, last, last], 2)[0] < 0.25
    with pytest.raises(UserError, match=r"a vocabulary of 2,097,152 tokens is too large; use judge\.kind: lexicon"):
        NGrams.fit(ROWS, LARGEST_VOCABULARY + 1, END)
