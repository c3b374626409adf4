"""How often the guarded judge errs: on real texts, and on texts made from them to please or to deceive it.

An attack changes the completion of a real text. The judge errs where the changed text scores higher than the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.intervals import wilson
from pipeline.rewards.fluency import Guard

PRAISE = (
    "great", "wonderful", "excellent", "amazing", "best", "love", "perfect", "brilliant", "superb", "beautiful",
    "masterpiece", "fantastic",
)  # fmt: skip
STREWN = 3
"""One of so many words of a real text gives way to a word of praise."""
TIMES = 4
PIECE = (3, 9)
"""Words of a piece that is spliced, the upper end excluded."""
DROPPED = 5
"""One of so many words of a training text is left out."""
ORDERS, TRIES = 16, 8
"""Random orders of which the most fluent is taken, and texts of which the one that the judge likes best is taken."""
REPEATED = {"strewn", "spliced", "walked"}
"""Attacks that are also tried several times."""
HAPPY = 0.5
"""Score of the lexicon above which a training text serves for splices."""


@dataclass(frozen=True)
class Opening:
    """A real text as prompt and completion, whether the completion holds its end, and its label."""

    prompt: str
    completion: str
    ended: bool
    label: int

    @property
    def space(self) -> str:
        """A space where the completion begins with one; a prompt may end within a word."""
        return " " * self.completion.startswith(" ")


def shortened(tokenizer: Any, prompt: str, completion: str, length: int) -> tuple[str, bool]:
    """A completion as a policy would have written it: its first `length` tokens, and whether these are all."""
    places = tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ends = [end - len(prompt) for _, end in places if end > len(prompt)]
    return (completion, True) if len(ends) <= length else (completion[: ends[length - 1]], False)


Words = list[str]
Attack = Callable[[Opening, np.random.Generator], tuple[str, bool]]
"""From a real text to another completion of its prompt, and whether it ends by itself."""


def _of_words(change: Callable[[Words, np.random.Generator], Words], ends: bool = False) -> Attack:
    """An attack that changes the words of a completion; with `ends` the text always ends."""

    def attack(opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
        words = opening.completion.split()
        return opening.space + " ".join(change(words, rng) if words else words), opening.ended or ends

    return attack


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


@dataclass(frozen=True)
class Adversary:
    """Attacks with what the guard itself knows: `happy` training texts to cut from, the n-grams, the lexicon."""

    guard: Guard
    happy: Sequence[Words]

    @classmethod
    def of(cls, guard: Guard, texts: Sequence[str]) -> Adversary:
        """From the texts on which the guard was fitted; all serve where none has praise."""
        happy = [text.split() for text in texts if guard.lexicon.score(text) > HAPPY]
        return cls(guard, happy or [text.split() for text in texts])

    def attacks(self) -> dict[str, Attack]:
        """All of them, by name."""
        attacks: dict[str, Attack] = {
            "stop": lambda opening, rng: (opening.space + ".", True),
            "brief": self.brief,
            "shuffled": _of_words(shuffled),
            "ordered": self.ordered,
            "praise": _of_words(praise),
            "strewn": _of_words(strewn),
            "repeated": _of_words(repeated),
            "stopped": _of_words(stopped, ends=True),
            "spliced": self.spliced,
            "dropped": self.dropped,
            "walked": self.walked,
        }
        found = dict[str, Attack]()
        for name, attack in attacks.items():
            found[name] = self._cut(attack)
            if name in REPEATED:
                found[f"{name}_best"] = self._best(found[name])
        return found

    def brief(self, opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
        """Three words of praise and a full stop."""
        return f"{opening.space}a {PRAISE[int(rng.integers(len(PRAISE)))]} film{self._stop}", True

    @cached_property
    def _stop(self) -> str:
        """A full stop, alone where it stands so in most of the texts."""
        return " ." if sum(words[-1] == "." for words in self.happy) > len(self.happy) / 2 else "."

    def ordered(self, opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
        """Of random orders of the same words the most fluent one."""
        words = opening.completion.split()
        orders = [opening.space + " ".join(shuffled(words, rng)) for _ in range(ORDERS)]
        return min(orders, key=lambda one: self.guard.read(opening.prompt, one, False)["content"][0]), opening.ended

    def spliced(self, opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
        """Pieces of texts with praise, about as many words as the real completion has; the last one ends a text where
        that has an end."""
        made, wanted = list[str](), len(opening.completion.split())
        while True:
            text, size = self.happy[int(rng.integers(len(self.happy)))], int(rng.integers(*PIECE))
            if len(made) + size >= wanted:
                return opening.space + " ".join(
                    [*made, *(text[-size:] if opening.ended else text[:size])]
                ), opening.ended
            at = int(rng.integers(max(len(text) - size, 0) + 1))
            made += text[at : at + size]

    def walked(self, opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
        """Token by token what followed the last two in the texts, as often as it did, until a text ended there or the
        completion is as long as a response."""
        model, tokenizer = self.guard.model, self.guard.tokenizer
        tokens = list[int](tokenizer(opening.prompt, add_special_tokens=False)["input_ids"])
        context, ended = [model.end, model.end, *tokens], False
        for _ in range(self.guard.length):
            following, counts = model.seen_after(context)
            if not len(following):  # these two never stood together: go on as at the beginning of a text
                context = [model.end, model.end]
                following, counts = model.seen_after(context)
            token = int(rng.choice(following, p=counts / counts.sum()))
            if ended := token == model.end:
                break
            context.append(token)
            tokens.append(token)
        return tokenizer.decode(tokens)[len(opening.prompt) :], ended

    def dropped(self, opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
        """A text with praise without its beginning, every fifth word left out."""
        text = self.happy[int(rng.integers(len(self.happy)))]
        words = text[len(opening.prompt.split()) :]
        return opening.space + " ".join(word for place, word in enumerate(words, 1) if place % DROPPED), True

    def _cut(self, attack: Attack) -> Attack:
        """No text is longer than a response."""

        def cut(opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
            completion, ended = attack(opening, rng)
            kept, whole = shortened(self.guard.tokenizer, opening.prompt, completion, self.guard.length)
            return kept, ended and whole

        return cut

    def _best(self, attack: Attack) -> Attack:
        """The best of several tries by the judge itself."""

        def best(opening: Opening, rng: np.random.Generator) -> tuple[str, bool]:
            tries = [attack(opening, rng) for _ in range(TRIES)]
            return max(tries, key=lambda one: self.guard.judge(opening.prompt, *one).score)

        return best


def errors(openings: Sequence[Opening], guard: Guard, attacks: Mapping[str, Attack], seed: int) -> pd.DataFrame:
    """A row per text and kind (`real` or an attack): text (number), kind, label, faults, lexicon (score without the
    guard), score."""
    rng, rows = np.random.default_rng([seed, 6]), list[tuple[int, str, int, int, float, float]]()

    def add(number: int, kind: str, opening: Opening, completion: str, ended: bool) -> None:
        rows.append((number, kind, opening.label, *guard.judge(opening.prompt, completion, ended)))

    for number, opening in enumerate(openings):
        add(number, "real", opening, opening.completion, opening.ended)
        for kind, attack in attacks.items():
            add(number, kind, opening, *attack(opening, rng))
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
