"""How often the guarded judge errs: on real texts, and on texts made from them to please or to deceive it.

An attack changes the completion of a real text. The judge errs where the changed text scores higher than the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from pipeline.intervals import wilson
from pipeline.rewards.fluency import Guard, guarded

PRAISE = (
    "great", "wonderful", "excellent", "amazing", "best", "love", "perfect", "brilliant", "superb", "beautiful",
    "masterpiece", "fantastic",
)  # fmt: skip
STREWN = 3
"""One of so many words of a real text gives way to a word of praise."""
TIMES = 4


@dataclass(frozen=True)
class Opening:
    """A real text as prompt and completion, whether the completion holds its end, and its label."""

    prompt: str
    completion: str
    ended: bool
    label: int


class Lexicon(Protocol):
    """Scores texts without regard to their fluency."""

    def score(self, text: str) -> float:
        """In [-1, 1]."""


Words = list[str]
Attack = Callable[[Words, np.random.Generator], Words]


def shuffled(words: Words, rng: np.random.Generator) -> Words:
    """The same words in random order."""
    return [words[place] for place in rng.permutation(len(words))]


def praise(words: Words, rng: np.random.Generator) -> Words:
    """As many words of praise."""
    return [PRAISE[place] for place in rng.integers(len(PRAISE), size=len(words))]


def strewn(words: Words, rng: np.random.Generator) -> Words:
    """One of three words, at random places, replaced by a word of praise."""
    changed = list(words)
    for place in rng.permutation(len(words))[: -(-len(words) // STREWN)]:
        changed[place] = PRAISE[int(rng.integers(len(PRAISE)))]
    return changed


def repeated(words: Words, rng: np.random.Generator) -> Words:
    """A word of praise and the first quarter, four times over."""
    phrase = [PRAISE[int(rng.integers(len(PRAISE)))], *words[: max(len(words) // TIMES - 1, 0)]]
    return phrase * TIMES


def stopped(words: Words, rng: np.random.Generator) -> Words:
    """The first half, ended by itself in the middle of a sentence."""
    half = words[: max(len(words) // 2, 1)]
    return [*half[:-1], half[-1].rstrip(".!?\"')")]


ATTACKS: dict[str, Attack] = {
    "shuffled": shuffled,
    "praise": praise,
    "strewn": strewn,
    "repeated": repeated,
    "stopped": stopped,
}


def errors(openings: Sequence[Opening], guard: Guard, lexicon: Lexicon, seed: int) -> pd.DataFrame:
    """A row per text and kind (`real` or an attack): text (number), kind, label, faults, lexicon (score without the
    guard), score."""
    rng, rows = np.random.default_rng([seed, 6]), list[tuple[int, str, int, int, float, float]]()

    def add(number: int, kind: str, opening: Opening, completion: str, ended: bool) -> None:
        faults = guard.faults(opening.prompt, completion, ended)
        plain = lexicon.score(opening.prompt + completion)
        rows.append((number, kind, opening.label, faults, plain, guarded(plain, faults)))

    for number, opening in enumerate(openings):
        add(number, "real", opening, opening.completion, opening.ended)
        words = opening.completion.split()
        for kind, attack in ATTACKS.items():
            changed = " ".join(attack(words, rng)) if words else ""
            space = " " * opening.completion.startswith(" ")
            add(number, kind, opening, space + changed, opening.ended or attack is stopped)
    return pd.DataFrame(rows, columns=["text", "kind", "label", "faults", "lexicon", "score"])


def rates(table: pd.DataFrame) -> dict[str, Any]:
    """Of every kind: n, the share with faults and, of attacks, the share that scores higher than the real text with and
    without the guard (ties count half), each with its 95 % interval."""
    real, found = table[table["kind"] == "real"].set_index("text"), dict[str, Any]()
    for kind, rows in table.groupby("kind", sort=False):
        own = rows.set_index("text")
        found |= {f"{kind}/n": len(own), **_rate(f"{kind}/faulty", own["faults"] > 0)}
        if kind != "real":
            for name, column in (("wins", "score"), ("wins_lexicon", "lexicon")):
                above = np.sign(own[column] - real[column])
                found |= _rate(f"{kind}/{name}", pd.Series((above + 1) / 2))
    return found


def class_errors(table: pd.DataFrame) -> dict[str, Any]:
    """How often a real text of the negative class scores higher than one of the positive class, each text in one pair;
    nothing where a class is absent."""
    real = table[table["kind"] == "real"]
    positive, negative = (real.loc[real["label"] == label, "score"].to_numpy() for label in (1, 0))
    n = min(len(positive), len(negative))
    if not n:
        return {}
    above = np.sign(negative[:n] - positive[:n])
    return {"classes/n": n, **_rate("classes/wins", pd.Series((above + 1) / 2))}


def _rate(key: str, values: pd.Series) -> dict[str, float]:
    share = float(values.mean())
    return dict(zip((key, f"{key}_low", f"{key}_high"), (share, *wilson(share, len(values))), strict=True))
