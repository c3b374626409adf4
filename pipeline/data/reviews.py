"""Built-in film reviews: a small probabilistic grammar, its generator, and the exact probability of every text.

A review is drawn as sentiment -> plan (kinds of clause in order) -> clauses. Given the sentiment, a text has
exactly one derivation, so log p(text) is a log-sum-exp over the three sentiments: what a language model
trained on these texts can reach at best. README.md beside this file shows the productions.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, product
from typing import Final, Generic, TypeVar

from pipeline.data import vocabulary as lexicon
from pipeline.data.vocabulary import ADJECTIVES, SENTIMENTS, Form, Sentiment, Sign, Strength

T = TypeVar("T")
SIGNS: Final[tuple[Sign, Sign]] = (1, -1)
JUDGING: Final = ("aspect", "contrast", "verdict", "recommendation")


@dataclass(frozen=True)
class Review:
    """A generated text with what is known of it."""

    text: str
    sentiment: Sentiment
    """The latent sentiment it was drawn under; clauses may disagree with it."""
    score: float
    """Sum of the clauses' values: what the gold judge must find."""
    logprob: float
    """Natural log of the probability of the text, the sentiment marginalised; nats, at most 0."""


@dataclass(frozen=True)
class Pattern:
    """A clause without its full stop; in clauses on an aspect, `{noun}` and `{be}` stand for the aspect and
    was/were."""

    text: str
    value: float


class Distribution(Generic[T]):
    """A finite distribution that is sampled by inversion, one uniform number a draw."""

    def __init__(self, weighted: Iterable[tuple[T, float]]) -> None:
        pairs = list(weighted)
        total = math.fsum(weight for _, weight in pairs)
        self.items: tuple[T, ...] = tuple(item for item, _ in pairs)
        self.probabilities: tuple[float, ...] = tuple(weight / total for _, weight in pairs)
        self._logs = [math.log(p) for p in self.probabilities]
        self._upper = list(accumulate(self.probabilities))[:-1]

    def draw(self, rng: random.Random) -> tuple[T, float]:
        """An item and the natural log of its probability."""
        index = bisect_right(self._upper, rng.random())
        return self.items[index], self._logs[index]


def _phrases(
    forms: tuple[Form, ...],
    words: dict[tuple[Strength, Sign], tuple[T, ...]],
    sign: Sign,
    realise: Callable[[str, str, T], str],
) -> list[tuple[Pattern, float]]:
    """All patterns of the forms whose meaning has this sign; each form's weight is shared by its words."""
    patterns = []
    for strength, negator, adverb, weight in forms:
        polarity: Sign = 1 if (sign > 0) == (lexicon.NEGATION[negator] > 0) else -1
        value = polarity * lexicon.STRENGTH[strength] * lexicon.INTENSITY[adverb] * lexicon.NEGATION[negator]
        choices = words[strength, polarity]
        patterns += [(Pattern(realise(negator, adverb, word), value), weight / len(choices)) for word in choices]
    return patterns


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def _copula(negator: str, adverb: str, adjective: str) -> str:
    return _join("The {noun} {be}", negator, adverb, adjective)


def _found(negator: str, adverb: str, adjective: str) -> str:
    return _join("I did not find the {noun}" if negator else "I found the {noun}", adverb, adjective)


def _mix(
    share: float, first: list[tuple[Pattern, float]], second: list[tuple[Pattern, float]]
) -> Distribution[Pattern]:
    """The first list with probability `share`, else the second."""
    scaled = []
    for part, pairs in ((share, first), (1.0 - share, second)):
        total = math.fsum(weight for _, weight in pairs)
        scaled += [(pattern, part * weight / total) for pattern, weight in pairs]
    return Distribution(scaled)


def _aspects(sign: Sign) -> Distribution[Pattern]:
    found_phrases = _phrases(lexicon.FOUND_FORMS, ADJECTIVES, sign, _found)
    return _mix(lexicon.FOUND_SHARE, found_phrases, _phrases(lexicon.COPULA_FORMS, ADJECTIVES, sign, _copula))


def _verdicts(sign: Sign) -> Distribution[Pattern]:
    weighted: list[tuple[Pattern, float]] = []
    for target in lexicon.OBJECTS:

        def realise(negator: str, adverb: str, verb: tuple[str, str], target: str = target) -> str:
            past, infinitive = verb
            return _join("I", "did not" if negator else "", adverb, infinitive if negator else past, target)

        weighted += _phrases(lexicon.VERDICT_FORMS, lexicon.VERDICT_VERBS, sign, realise)
    return Distribution(weighted)


def _recommendations(sign: Sign) -> Distribution[Pattern]:
    # Nothing is the opposite of `recommend`, so favourable clauses take the plain forms and the others the negated
    # ones.
    forms = tuple(form for form in lexicon.RECOMMEND_FORMS if lexicon.NEGATION[form[1]] * sign > 0)
    recommend: list[tuple[Pattern, float]] = []
    for target in lexicon.OBJECTS:

        def realise(negator: str, adverb: str, reader: str, target: str = target) -> str:
            return _join("I would", negator, adverb, "recommend", target, "to", reader)

        recommend += _phrases(forms, {("gradable", 1): lexicon.RECOMMEND_TO}, sign, realise)
    advice = [
        (Pattern(f"{head} {target}", value), weight)
        for head, value, weight in lexicon.ADVICE
        for target in lexicon.OBJECTS
        if value * sign > 0
    ]
    return _mix(lexicon.RECOMMEND_SHARE, recommend, advice)


def _insults(sign: Sign) -> Distribution[Pattern]:
    choices = product(lexicon.INSULTS, lexicon.INSULTED[sign], lexicon.OBJECTS)
    value = sign * lexicon.INSULT_VALUE
    return Distribution(
        (Pattern(_join("Only", person, "would", verb, target), value), 1.0) for person, verb, target in choices
    )


ASPECTS: Final[tuple[tuple[str, str], ...]] = tuple((noun, "was") for noun in lexicon.ASPECTS_SINGULAR) + tuple(
    (noun, "were") for noun in lexicon.ASPECTS_PLURAL
)
"""Noun and its verb."""
REMARKS: Final[dict[str, Distribution[Pattern]]] = {
    kind: Distribution((Pattern(_join(*choice), 0.0), 1.0) for choice in product(*columns))
    for kind, columns in lexicon.NEUTRAL.items()
}
ASPECT_CLAUSES: Final = {sign: _aspects(sign) for sign in SIGNS}
COPULAS: Final = {sign: Distribution(_phrases(lexicon.COPULA_FORMS, ADJECTIVES, sign, _copula)) for sign in SIGNS}
"""The halves of a contrast; they have opposite signs."""
CLOSING: Final = {
    "verdict": {sign: _verdicts(sign) for sign in SIGNS},
    "recommendation": {sign: _recommendations(sign) for sign in SIGNS},
}
INSULTS: Final = {sign: _insults(sign) for sign in SIGNS}
"""How a review ends that insults whoever thinks otherwise; only where insults are asked for."""
PLANS: Final[dict[Sentiment, Distribution[tuple[str, ...]]]] = {
    sentiment: Distribution(
        (tuple(plan.split()), mixed if sentiment == "mixed" else clear) for plan, clear, mixed in lexicon.PLANS
    )
    for sentiment in SENTIMENTS
}
_SENTIMENT: Final = Distribution((sentiment, lexicon.SENTIMENT_PROBABILITY[sentiment]) for sentiment in SENTIMENTS)
_LOG_PLAN: Final = {
    sentiment: {plan: math.log(p) for plan, p in zip(table.items, table.probabilities, strict=True)}
    for sentiment, table in PLANS.items()
}


def fill(pattern: Pattern, aspect: tuple[str, str]) -> str:
    """The clause that a pattern makes of an aspect, without the full stop."""
    noun, verb = aspect
    return pattern.text.replace("{noun}", noun).replace("{be}", verb)


def contrast(conceded: str, claimed: str) -> str:
    """Two clauses without full stops, joined by `but`."""
    return f"{conceded}, but {claimed[0].lower()}{claimed[1:]}"


class _Draft:
    """A review in the making: its clauses, and what was chosen on the way."""

    def __init__(self, rng: random.Random, sentiment: Sentiment) -> None:
        self.rng = rng
        self.sentiment = sentiment
        self.clauses: list[str] = []
        self.score = 0.0
        self.logprob = 0.0
        """Of the choices that do not depend on the sentiment."""
        self.favourable = 0
        self.unfavourable = 0
        self._unused = list(ASPECTS)

    def add(self, kind: str) -> None:
        if kind in REMARKS:
            self._append(self._draw(REMARKS[kind]))
            return
        sign = self._sign()
        if kind == "aspect":
            pattern = self._draw(ASPECT_CLAUSES[sign])
            self._append(Pattern(fill(pattern, self._aspect()), pattern.value))
        elif kind == "insult":
            self._append(self._draw(INSULTS[sign]))
        elif kind == "contrast":
            self._append(self._contrast(sign))
        else:
            self._append(self._draw(CLOSING[kind][sign]))

    def end(self, insults: float) -> None:
        """Add an insult with this probability; without one of 0 nothing is drawn."""
        if not insults:
            return
        insults_here = self.rng.random() < insults
        self.logprob += math.log(insults) if insults_here else math.log1p(-insults)
        if insults_here:
            self.add("insult")

    def _append(self, clause: Pattern) -> None:
        self.clauses.append(f"{clause.text}.")
        self.score += clause.value

    def _contrast(self, sign: Sign) -> Pattern:
        conceded, claimed = self._draw(COPULAS[-1 if sign > 0 else 1]), self._draw(COPULAS[sign])
        text = contrast(fill(conceded, self._aspect()), fill(claimed, self._aspect()))
        return Pattern(text, lexicon.CONCEDED * conceded.value + claimed.value)

    def _draw(self, table: Distribution[Pattern]) -> Pattern:
        pattern, logprob = table.draw(self.rng)
        self.logprob += logprob
        return pattern

    def _sign(self) -> Sign:
        if self.rng.random() < lexicon.FAVOURABLE[self.sentiment]:
            self.favourable += 1
            return 1
        self.unfavourable += 1
        return -1

    def _aspect(self) -> tuple[str, str]:
        self.logprob -= math.log(len(self._unused))
        return self._unused.pop(int(self.rng.random() * len(self._unused)))


def _review(rng: random.Random, insults: float) -> Review:
    sentiment, _ = _SENTIMENT.draw(rng)
    plan, _ = PLANS[sentiment].draw(rng)
    draft = _Draft(rng, sentiment)
    for kind in plan:
        draft.add(kind)
    draft.end(insults)
    given = [_log_sentiment(latent, plan, draft.favourable, draft.unfavourable) for latent in SENTIMENTS]
    largest = max(given)
    marginal = largest + math.log(math.fsum(math.exp(logprob - largest) for logprob in given))
    return Review(" ".join(draft.clauses), sentiment, draft.score, draft.logprob + marginal)


def _log_sentiment(sentiment: Sentiment, plan: tuple[str, ...], favourable: int, unfavourable: int) -> float:
    """log p(sentiment, plan, signs of the judging clauses)."""
    p = lexicon.FAVOURABLE[sentiment]
    signs = favourable * math.log(p) + unfavourable * math.log1p(-p)
    return math.log(lexicon.SENTIMENT_PROBABILITY[sentiment]) + _LOG_PLAN[sentiment][plan] + signs


def _distinct(seed: int, insults: float) -> Iterator[Review]:
    rng = random.Random(seed)
    seen: set[str] = set()
    while True:
        review = _review(rng, insults)
        if review.text not in seen:
            seen.add(review.text)
            yield review


def generate(n: int, seed: int, insults: float = 0.0) -> list[Review]:
    """The first `n` distinct reviews of a seed's endless sequence; shorter lists are prefixes of longer ones.

    The share `insults` of the reviews, in [0, 1], ends with an insult of those who think otherwise.

    >>> [review.text for review in generate(2, seed=1)] == [review.text for review in generate(3, seed=1)][:2]
    True
    """
    return list(islice(_distinct(seed, insults), n))
