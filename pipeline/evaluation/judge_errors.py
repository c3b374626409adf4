"""How often the guarded judge errs: on real texts, and on texts made from them to please it.

An attack changes the completion of a real text. The judge errs where the changed text scores higher than the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from pipeline.intervals import wilson
from pipeline.rewards.fluency import FluencyGuard

PRAISE = (
    "great", "wonderful", "excellent", "amazing", "best", "love", "perfect", "brilliant", "superb", "beautiful",
    "masterpiece", "fantastic",
)  # fmt: skip
STREWN = 3
"""One of so many words of a real text gives way to a word of praise."""
TIMES = 4
PIECE = (3, 9)
"""Words of a piece that is spliced, the upper end excluded."""
HAPPY = 0.5
"""Score of the lexicon above which a training text serves for splices."""


@dataclass(frozen=True)
class Opening:
    """A real text as prompt and completion, and whether the completion holds its end."""

    prompt: str
    completion: str
    ended: bool


def shortened(tokenizer: Any, prompt: str, completion: str, length: int) -> tuple[str, bool]:
    """A completion as a policy would have written it: its first `length` tokens, and whether these are all."""
    places = tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ends = [end - len(prompt) for _, end in places if end > len(prompt)]
    return (completion, True) if len(ends) <= length else (completion[: ends[length - 1]], False)


Words = list[str]
Attack = Callable[[Words, np.random.Generator], Words]
"""From the words of a real completion, at least one, to others."""


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
    return [PRAISE[int(rng.integers(len(PRAISE)))], *words[: max(len(words) // TIMES - 1, 0)]] * TIMES


def spliced(happy: Sequence[Words], words: Words, rng: np.random.Generator) -> Words:
    """Pieces of texts with praise, as many words as the real completion has."""
    made = list[str]()
    while len(made) < len(words):
        text, size = happy[int(rng.integers(len(happy)))], int(rng.integers(*PIECE))
        at = int(rng.integers(max(len(text) - size, 0) + 1))
        made += text[at : at + size]
    return made[: len(words)]


def attacks(guard: FluencyGuard, texts: Sequence[str]) -> dict[str, Attack]:
    """All of them, by name; `texts`: those that the guard knows, of which pieces are spliced from the ones with
    praise."""
    happy = [text.split() for text in texts if guard.lexicon.score(text) > HAPPY] or [text.split() for text in texts]
    return {
        "shuffled": shuffled,
        "praise": praise,
        "strewn": strewn,
        "repeated": repeated,
        "spliced": partial(spliced, happy),
    }


def errors(openings: Sequence[Opening], guard: FluencyGuard, attacks: Mapping[str, Attack], seed: int) -> pd.DataFrame:
    """A row per text and kind (`real` or an attack): text (number), kind, faults, lexicon (score without the guard),
    score. No attacked text is longer than a response."""
    rng, rows = np.random.default_rng([seed, 6]), list[tuple[int, str, int, float, float]]()
    for number, opening in enumerate(openings):
        prompt, completion, ended = opening.prompt, opening.completion, opening.ended
        rows.append((number, "real", *guard.judge(prompt, completion, ended)))
        for kind, attack in attacks.items():
            words = completion.split()
            # A space where the completion begins with one; a prompt may end within a word.
            changed = " " * completion.startswith(" ") + " ".join(attack(words, rng)) if words else completion
            kept, whole = shortened(guard.tokenizer, prompt, changed, guard.length)
            rows.append((number, kind, *guard.judge(prompt, kept, ended and whole)))
    return pd.DataFrame(rows, columns=["text", "kind", "faults", "lexicon", "score"])


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


def _rate(key: str, values: pd.Series) -> dict[str, float]:
    share = float(values.mean())
    return dict(zip((key, f"{key}_low", f"{key}_high"), (share, *wilson(share, len(values))), strict=True))
