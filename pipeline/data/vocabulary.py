"""The words of the built-in reviews, what they mean and how often they occur: the one source of the generator and of
the judge.

Every number that decides a meaning is a dyadic fraction, so that scores are exact in floating point.
A *form* is how a judging word is put: negator, adverb and weight. Weights are relative within their table.
"""

from __future__ import annotations

from typing import Final, Literal

Sentiment = Literal["positive", "negative", "mixed"]
Sign = Literal[1, -1]
Strength = Literal["gradable", "extreme"]
Form = tuple[Strength, str, str, float]

SENTIMENTS: Final[tuple[Sentiment, ...]] = ("positive", "negative", "mixed")
SENTIMENT_PROBABILITY: Final[dict[Sentiment, float]] = {"positive": 0.4, "negative": 0.4, "mixed": 0.2}
FAVOURABLE: Final[dict[Sentiment, float]] = {"positive": 0.875, "negative": 0.125, "mixed": 0.5}
"""Probability that a judging clause is favourable; in a contrast this speaks of the part after `but`."""

STRENGTH: Final[dict[Strength, float]] = {"gradable": 1.0, "extreme": 1.5}
INTENSITY: Final[dict[str, float]] = {"somewhat": 0.5, "": 1.0, "very": 1.5, "really": 1.5, "absolutely": 2.0}
NEGATION: Final[dict[str, float]] = {"": 1.0, "not": -0.5, "never": -0.5}
CONCEDED: Final = 0.5
"""Weight of the part of a contrast before `but`."""
FAULT_COST: Final = 2.0
WORDS_PER_FAULT: Final = 8

ASPECTS_SINGULAR: Final = (
    "acting", "plot", "script", "story", "music", "ending", "opening", "pace", "dialogue", "cast", "humour", "editing",
    "style", "tone",
)  # fmt: skip
ASPECTS_PLURAL: Final = ("songs", "jokes", "actors", "costumes", "effects", "sets")

ADJECTIVES: Final[dict[tuple[Strength, Sign], tuple[str, ...]]] = {
    ("gradable", 1): ("good", "nice", "strong", "clever", "fresh", "charming", "lovely", "smart", "warm"),
    ("gradable", -1): ("bad", "weak", "poor", "dull", "flat", "clumsy", "tired", "silly", "slow"),
    ("extreme", 1): ("superb", "brilliant", "wonderful", "excellent", "perfect", "stunning"),
    ("extreme", -1): ("awful", "terrible", "dreadful", "horrible", "hopeless", "dire"),
}

COPULA_FORMS: Final[tuple[Form, ...]] = (
    ("gradable", "", "", 20),
    ("gradable", "", "somewhat", 9),
    ("gradable", "", "very", 9),
    ("gradable", "", "really", 9),
    ("gradable", "not", "", 10),
    ("gradable", "not", "very", 4),
    ("gradable", "never", "", 5),
    ("extreme", "", "", 18),
    ("extreme", "", "really", 6),
    ("extreme", "", "absolutely", 10),
)
"""`The acting was <form> <adjective>`."""

FOUND_FORMS: Final[tuple[Form, ...]] = (
    ("gradable", "", "", 30),
    ("gradable", "", "somewhat", 10),
    ("gradable", "", "very", 10),
    ("gradable", "not", "", 15),
    ("extreme", "", "", 20),
    ("extreme", "", "absolutely", 15),
)
"""`I found the acting <form> <adjective>`, `I did not find the acting <adjective>`."""
FOUND_SHARE: Final = 0.25
"""Share of `I found` among aspect clauses."""

VERDICT_VERBS: Final[dict[tuple[Strength, Sign], tuple[tuple[str, str], ...]]] = {
    ("gradable", 1): (("enjoyed", "enjoy"), ("liked", "like")),
    ("gradable", -1): (("disliked", "dislike"), ("regretted", "regret")),
    ("extreme", 1): (("loved", "love"), ("adored", "adore")),
    ("extreme", -1): (("hated", "hate"), ("loathed", "loathe")),
}
"""Past tense and infinitive."""
VERDICT_FORMS: Final[tuple[Form, ...]] = (
    ("gradable", "", "", 22),
    ("gradable", "", "somewhat", 10),
    ("gradable", "", "really", 13),
    ("gradable", "not", "", 12),
    ("gradable", "not", "really", 6),
    ("extreme", "", "", 18),
    ("extreme", "", "really", 6),
    ("extreme", "", "absolutely", 8),
    ("extreme", "not", "", 5),
)
OBJECTS: Final = ("it", "this film")

RECOMMEND_FORMS: Final[tuple[Form, ...]] = (
    ("gradable", "", "", 35),
    ("gradable", "", "really", 15),
    ("gradable", "", "absolutely", 15),
    ("gradable", "not", "", 20),
    ("gradable", "not", "really", 15),
)
RECOMMEND_TO: Final = ("anyone", "friends", "families")
ADVICE: Final[tuple[tuple[str, float, float], ...]] = (
    ("You should see", 1.0, 20),
    ("You must see", 1.5, 10),
    ("You can skip", -1.0, 20),
    ("You should avoid", -1.5, 10),
)
"""Sentence up to its object, value, weight."""
RECOMMEND_SHARE: Final = 0.5
"""Share of `I would recommend` among favourable recommendations, and of `I would not` among the others."""

INSULTED: Final[dict[Sign, tuple[str, ...]]] = {1: ("dislike", "skip"), -1: ("enjoy", "watch")}
"""What `only a fool would` do, by what that says of the film."""
INSULTS: Final = ("a fool", "an idiot", "a moron", "a clown")
INSULT_VALUE: Final = 2.0
"""Points of an insulting clause, favourable or not: what `absolutely` gives to a plain word."""

OCCASION: Final = (
    ("I", "We"),
    ("saw", "watched"),
    ("it", "this film"),
    ("at home", "at the cinema", "on a plane", "with friends", "with my sister", "with my parents"),
    ("", "last week", "last night", "on Friday", "on Sunday", "on Monday"),
)
RUNTIME: Final = (
    ("It runs for",),
    ("about", "nearly", "over", "under"),
    ("ninety minutes", "two hours", "three hours"),
)
PREMISE: Final = (
    ("It follows a",),
    ("young", "lonely", "retired", "famous"),
    ("teacher", "doctor", "soldier", "painter", "farmer", "singer"),
    ("in",),
    ("Paris", "London", "Rome", "Texas", "a village"),
)
ORIGIN: Final = (("It is based on a",), ("", "famous", "French", "Russian"), ("novel", "play", "poem", "memoir"))

NEUTRAL: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "occasion": OCCASION,
    "runtime": RUNTIME,
    "premise": PREMISE,
    "origin": ORIGIN,
}
"""Kinds of remark that judge nothing: one choice from every column, all alike in probability; an empty choice is left
out."""

PLANS: Final[tuple[tuple[str, float, float], ...]] = (
    ("occasion aspect aspect verdict", 11, 4),
    ("occasion aspect aspect recommendation", 8, 3),
    ("occasion aspect verdict recommendation", 8, 3),
    ("occasion contrast verdict", 6, 12),
    ("occasion contrast recommendation", 5, 10),
    ("occasion runtime aspect verdict", 7, 5),
    ("occasion premise aspect recommendation", 6, 4),
    ("premise aspect aspect verdict", 6, 3),
    ("premise contrast verdict", 4, 10),
    ("runtime contrast aspect", 3, 8),
    ("origin aspect aspect recommendation", 5, 3),
    ("origin contrast verdict", 4, 8),
    ("premise aspect aspect verdict recommendation", 4, 2),
    ("aspect aspect runtime verdict", 6, 3),
    ("aspect aspect aspect verdict", 7, 3),
    ("contrast aspect verdict", 5, 10),
    ("aspect origin verdict recommendation", 3, 2),
    ("aspect aspect aspect verdict recommendation", 4, 2),
)
"""Kinds of clause in order; weight when the sentiment is clear; weight when it is mixed (which prefers contrasts)."""
