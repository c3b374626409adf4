"""Error rates of the guarded judge: on real texts, and on texts made from them to score high.

An attack changes the completion of a real text. The judge errs where the changed text scores higher than the real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.intervals import wilson
from pipeline.rewards.fluency import FluencyGuard

PRAISE = (
    "great", "wonderful", "excellent", "amazing", "best", "love", "perfect", "brilliant", "superb", "beautiful",
    "masterpiece", "fantastic",
)  # fmt: skip


class Opening(NamedTuple):
    """A real text as prompt and completion, and whether the completion holds its end."""

    prompt: str
    completion: str
    ended: bool


def shortened(tokenizer: Any, prompt: str, completion: str, length: int) -> tuple[str, bool]:
    """A completion as a policy would have written it: its first `length` tokens, and whether these are all."""
    places = tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ends = [end - len(prompt) for _, end in places if end > len(prompt)]
    return (completion, True) if len(ends) <= length else (completion[: ends[length - 1]], False)


def attacked(words: list[str], rng: np.random.Generator) -> dict[str, list[str]]:
    """The words of a real completion in random order, and as many words of praise."""
    return {
        "shuffled": [words[place] for place in rng.permutation(len(words))],
        "praise": [PRAISE[place] for place in rng.integers(len(PRAISE), size=len(words))],
    }


def errors(openings: Iterable[Opening], guard: FluencyGuard, seed: int) -> pd.DataFrame:
    """A row per text and kind (`real` or an attack): text (number), kind, faults, lexicon (score without the guard),
    score. No attacked text is longer than a response."""
    rng, rows = np.random.default_rng([seed, 6]), list[tuple[int, str, int, float, float]]()
    for number, (prompt, completion, ended) in enumerate(openings):
        rows.append((number, "real", *guard.judge(prompt, completion, ended)))
        for kind, words in attacked(completion.split(), rng).items():
            # A space where the completion begins with one; a prompt may end within a word.
            changed = " " * completion.startswith(" ") + " ".join(words)
            kept, whole = shortened(guard.tokenizer, prompt, changed, guard.length)
            rows.append((number, kind, *guard.judge(prompt, kept, ended and whole)))
    return pd.DataFrame(rows, columns=["text", "kind", "faults", "lexicon", "score"])


def rates(table: pd.DataFrame) -> dict[str, Any]:
    """Return, for every kind, n, the share with faults and, of attacks, the share that scores higher than the real text
    with and without the guard (ties count half), each with its 95 % interval."""
    real, found = table[table["kind"] == "real"].set_index("text"), dict[str, Any]()
    for kind, rows in table.groupby("kind", sort=False):
        own = rows.set_index("text")
        found |= {f"{kind}/n": len(own), **_rate(f"{kind}/faulty", own["faults"] > 0)}
        if kind != "real":
            for name, column in (("wins", "score"), ("wins_lexicon", "lexicon")):
                found |= _rate(f"{kind}/{name}", pd.Series(np.sign(own[column] - real[column]) + 1) / 2)
    return found


def _rate(key: str, values: pd.Series) -> dict[str, float]:
    share = float(values.mean())
    return dict(zip((key, f"{key}_low", f"{key}_high"), (share, *wilson(share, len(values))), strict=True))
