"""Built-in film reviews: a small probabilistic grammar, its generator, and the exact probability of every text.

A review is drawn as sentiment -> plan (kinds of clause in order) -> clauses. The plan of a short review is one of a
list; that of a long one is drawn kind by kind, and its nouns come in the order of their table. Given the sentiment, a
text has exactly one derivation, so log p(text) is a log-sum-exp over the three sentiments: what a language model
trained on these texts can reach at best. README.md beside this file shows the productions, reviews.yaml has the words.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate, product
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import yaml

T = TypeVar("T")
WORDS: Final[dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SENTIMENTS: Final[dict[str, dict[str, float]]] = WORDS["sentiments"]
SIGNS: Final = (1, -1)


class Review(NamedTuple):
    """A generated text with what is known of it."""

    text: str
    score: float
    """Sum of the clauses' values: what the gold judge must find."""
    logprob: float
    """Natural log of the probability of the text, the sentiment marginalised; nats, at most 0."""


class Pattern(NamedTuple):
    """A clause without its full stop; `{noun}` and `{be}` stand for an aspect and was/were."""

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

    def log(self, item: T) -> float:
        """The natural log of an item's probability."""
        return self._logs[self.items.index(item)]


def _join(*words: str) -> str:
    return " ".join(" ".join(words).split())


def _phrases(kind: str, sign: int) -> list[tuple[Pattern, float]]:
    """All patterns of a family whose meaning has this sign; each form's weight is shared by its words."""
    family, patterns = WORDS[kind], []
    for target, (strength, negator, adverb, weight) in product(family.get("objects", [""]), family["forms"]):
        negation = WORDS["negation"][negator]
        polarity = 1 if (sign > 0) == (negation > 0) else -1
        value = polarity * WORDS["strength"][strength] * WORDS["intensity"][adverb] * negation
        choices = family["words"][strength].get(polarity, ())
        for word in choices:
            blanks = {"negator": negator, "adverb": adverb, "word": word, "object": target}
            text = family["negated" if negator else "plain"].format(**blanks, noun="{noun}", be="{be}")
            patterns.append((Pattern(_join(text), value), weight / len(choices)))
    return patterns


def _mix(
    share: float, first: list[tuple[Pattern, float]], second: list[tuple[Pattern, float]]
) -> Distribution[Pattern]:
    """The first list with probability `share`, else the second."""
    scaled = []
    for part, pairs in ((share, first), (1.0 - share, second)):
        total = math.fsum(weight for _, weight in pairs)
        scaled += [(pattern, part * weight / total) for pattern, weight in pairs]
    return Distribution(scaled)


def _recommendations(sign: int) -> Distribution[Pattern]:
    advice = [
        (Pattern(_join(head, target), value), weight)
        for (head, value, weight), target in product(WORDS["advice"], WORDS["objects"])
        if value * sign > 0
    ]
    return _mix(WORDS["recommend"]["share"], _phrases("recommend", sign), advice)


def _insults(sign: int) -> Distribution[Pattern]:
    insults = WORDS["insults"]
    choices = product(insults["people"], insults["verbs"][sign], WORDS["objects"])
    value = sign * insults["value"]
    return Distribution(
        (Pattern(_join("Only", person, "would", verb, target), value), 1.0) for person, verb, target in choices
    )


ASPECTS: Final[list[tuple[str, str]]] = [(noun, be) for be, nouns in WORDS["aspects"].items() for noun in nouns]
"""Noun and its verb."""
REMARKS: Final[dict[str, Distribution[Pattern]]] = {
    kind: Distribution((Pattern(_join(*choice), 0.0), 1.0) for choice in product(*columns))
    for kind, columns in WORDS["neutral"].items()
}
COPULAS: Final = {sign: Distribution(_phrases("copula", sign)) for sign in SIGNS}
"""The halves of a contrast; they have opposite signs."""
OPINIONS: Final[dict[str, dict[int, Distribution[Pattern]]]] = {
    "aspect": {
        sign: _mix(WORDS["found"]["share"], _phrases("found", sign), _phrases("copula", sign)) for sign in SIGNS
    },
    "verdict": {sign: Distribution(_phrases("verdict", sign)) for sign in SIGNS},
    "recommendation": {sign: _recommendations(sign) for sign in SIGNS},
    "insult": {sign: _insults(sign) for sign in SIGNS},
}
"""Judging clauses by kind and sign, but for contrasts. An insult of those who think otherwise ends a review, where
insults are asked for."""
Plan = tuple[str, ...]
LONG: Final[dict[str, dict[str, float]]] = WORDS["long"]
NOUNS: Final = {"aspect": 1, "contrast": 2}
"""Number of nouns in a clause of a kind."""
PLANS: Final[dict[str, Distribution[Plan]]] = {
    sentiment: Distribution(
        (tuple(plan.split()), mixed if sentiment == "mixed" else clear) for plan, clear, mixed in WORDS["plans"]
    )
    for sentiment in SENTIMENTS
}


class LongPlans:
    """Plans of `low` to `high` clauses, each number as likely as any other: some of the kinds that open or close a
    review, and between them aspects and the share `contrasts` of contrasts, as long as the nouns suffice."""

    def __init__(self, low: int, high: int, contrasts: float) -> None:
        self._numbers = Distribution((number, 1.0) for number in range(low, high + 1))
        self._contrasts = contrasts

    def draw(self, rng: random.Random) -> tuple[Plan, float]:
        """A plan and the natural log of its probability."""
        number, nouns, between = self._numbers.draw(rng)[0], len(ASPECTS), list[str]()
        first, last = ([kind for kind, p in LONG[end].items() if rng.random() < p] for end in ("opening", "closing"))
        for left in range(number - len(first) - len(last), 0, -1):
            between.append("contrast" if rng.random() < self._share(nouns, left) else "aspect")
            nouns -= NOUNS[between[-1]]
        plan = (*first, *between, *last)
        return plan, self.log(plan)

    def log(self, item: Plan) -> float:
        """The natural log of a plan's probability."""
        ends, nouns = LONG["opening"] | LONG["closing"], len(ASPECTS)
        total = self._numbers.log(len(item)) + sum(math.log(p if kind in item else 1 - p) for kind, p in ends.items())
        between = [kind for kind in item if kind in NOUNS]
        for at, kind in enumerate(between):
            share = self._share(nouns, len(between) - at)
            total += math.log(share if kind == "contrast" else 1 - share)
            nouns -= NOUNS[kind]
        return total

    def _share(self, nouns: int, left: int) -> float:
        """Probability that the next of `left` clauses is a contrast: the others need a noun each."""
        return self._contrasts if nouns - NOUNS["contrast"] >= left - 1 else 0.0


Plans = Distribution[Plan] | LongPlans
_SENTIMENT: Final = Distribution((name, numbers["probability"]) for name, numbers in SENTIMENTS.items())


def fill(pattern: Pattern, aspect: tuple[str, str]) -> str:
    """The clause that a pattern makes of an aspect, without the full stop."""
    noun, verb = aspect
    return pattern.text.replace("{noun}", noun).replace("{be}", verb)


def uncapitalised(clause: str) -> str:
    """A clause as it stands after `but`."""
    return clause[0].lower() + clause[1:]


class _Draft:
    """A review in the making: its clauses, and what was chosen on the way."""

    def __init__(self, rng: random.Random, sentiment: str) -> None:
        self.rng = rng
        self.sentiment = sentiment
        self.clauses: list[str] = []
        self.score = 0.0
        self.logprob = 0.0
        """Of the choices that do not depend on the sentiment."""
        self.signs: list[int] = []
        self._unused = list(ASPECTS)
        self._next = list[tuple[str, str]]()
        """Nouns that are chosen beforehand."""

    def choose(self, count: int) -> None:
        """Choose the nouns to come, in the order of the table, so that a network need not remember all of them."""
        self._next = [ASPECTS[at] for at in sorted(self.rng.sample(range(len(ASPECTS)), count))]
        self.logprob -= math.log(math.comb(len(ASPECTS), count))

    def add(self, kind: str) -> None:
        if kind in REMARKS:
            self._append(self._draw(REMARKS[kind]))
            return
        sign = self._sign()
        if kind == "contrast":
            conceded, claimed = self._draw(COPULAS[-sign]), self._draw(COPULAS[sign])
            text = f"{fill(conceded, self._aspect())}, but {uncapitalised(fill(claimed, self._aspect()))}"
            self._append(Pattern(text, WORDS["conceded"] * conceded.value + claimed.value))
            return
        pattern = self._draw(OPINIONS[kind][sign])
        self._append(Pattern(fill(pattern, self._aspect()), pattern.value) if kind == "aspect" else pattern)

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

    def _draw(self, table: Distribution[Pattern]) -> Pattern:
        pattern, logprob = table.draw(self.rng)
        self.logprob += logprob
        return pattern

    def _sign(self) -> int:
        self.signs.append(1 if self.rng.random() < SENTIMENTS[self.sentiment]["favourable"] else -1)
        return self.signs[-1]

    def _aspect(self) -> tuple[str, str]:
        if self._next:
            return self._next.pop(0)
        self.logprob -= math.log(len(self._unused))
        return self._unused.pop(int(self.rng.random() * len(self._unused)))


def _review(rng: random.Random, insults: float, plans: Mapping[str, Plans]) -> Review:
    sentiment, _ = _SENTIMENT.draw(rng)
    plan, _ = plans[sentiment].draw(rng)
    draft = _Draft(rng, sentiment)
    if plans is not PLANS:
        draft.choose(sum(NOUNS.get(kind, 0) for kind in plan))
    for kind in plan:
        draft.add(kind)
    draft.end(insults)
    given = [_log_sentiment(latent, plans[latent].log(plan), draft.signs) for latent in SENTIMENTS]
    largest = max(given)
    marginal = largest + math.log(math.fsum(math.exp(logprob - largest) for logprob in given))
    return Review(" ".join(draft.clauses), draft.score, draft.logprob + marginal)


def _log_sentiment(sentiment: str, log_plan: float, signs: list[int]) -> float:
    p = SENTIMENTS[sentiment]["favourable"]
    drawn = signs.count(1) * math.log(p) + signs.count(-1) * math.log1p(-p)
    return math.log(SENTIMENTS[sentiment]["probability"]) + log_plan + drawn


def generate(n: int, seed: int, insults: float = 0.0, clauses: tuple[int, int] | None = None) -> list[Review]:
    """The first `n` distinct reviews of a seed's endless sequence; shorter lists are prefixes of longer ones.

    The share `insults` of the reviews, in [0, 1], ends with an insult of those who think otherwise. With `clauses` the
    reviews have so many before it, from 6 to 20; without, three to five by a list of plans.

    >>> [review.text for review in generate(2, seed=1)] == [review.text for review in generate(3, seed=1)][:2]
    True
    """
    plans: Mapping[str, Plans] = PLANS
    if clauses:
        shares = LONG["contrasts"]
        plans = {name: LongPlans(*clauses, shares.get(name, shares["clear"])) for name in SENTIMENTS}
    rng, found = random.Random(seed), dict[str, Review]()
    while len(found) < n:
        review = _review(rng, insults, plans)
        found.setdefault(review.text, review)
    return list(found.values())
