"""An interpolated Kneser-Ney trigram over tokens, fitted by counting: cheap, deterministic, and no network.

For a token w after u v, with c(·) the counts of the texts, N(v w) the number of different tokens before v w, and N(w)
the number of different tokens before w::

    P3(w | u v) = (max(c(u v w) - D, 0) + D N(u v ·) P2(w | v)) / c(u v ·)
    P2(w | v)   = (max(N(v w) - D, 0) + D N(v ·) P1(w)) / sum_w N(v w)
    P1(w)       = (max(N(w) - D, 0) + D N(·) / V) / sum_w N(w)

N(u v ·), N(v ·) and N(·) are the numbers of different tokens that were seen there. After a context that was never seen,
the shorter one counts alone. Kneser and Ney 1995; the interpolated form is Chen and Goodman 1999, section 2.7. Every
text begins with two end tokens as context and ends with one, which is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from pipeline.errors import UserError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ORDER = 3
DISCOUNT = 0.75
LARGEST_VOCABULARY = 2**21 - 1
"""Its cube fits into 63 bits."""


@dataclass(frozen=True)
class NGramCounts:
    """Counts by n-gram and what they add up to by context; all keys ascending."""

    keys: Ints
    counts: Floats
    contexts: Ints
    totals: Floats
    kinds: Floats
    """Different tokens that followed a context."""

    @classmethod
    def of(cls, keys: Ints, counts: Ints, vocabulary: int) -> NGramCounts:
        contexts, starts = np.unique(keys // vocabulary, return_index=True)
        totals = np.add.reduceat(counts, starts).astype(np.float64)
        kinds = np.diff(np.append(starts, len(keys))).astype(np.float64)
        return cls(keys, counts.astype(np.float64), contexts, totals, kinds)

    def interpolated(self, keys: Ints, vocabulary: int, lower: Floats) -> Floats:
        """P of the last token of each n-gram of `keys` (n,), from the probabilities by a shorter context (n,)."""
        counts, context = _at(self.keys, self.counts, keys), keys // vocabulary
        totals, kinds = _at(self.contexts, self.totals, context), _at(self.contexts, self.kinds, context)
        mixed = np.maximum(counts - DISCOUNT, 0) + DISCOUNT * kinds * lower
        return np.where(totals > 0, mixed / np.maximum(totals, 1), lower)


@dataclass(frozen=True)
class NGrams:
    """The fitted model; `tables` by order, from single tokens on."""

    vocabulary: int
    end: int
    tables: tuple[NGramCounts, ...]

    @classmethod
    def fit(cls, rows: Iterable[Sequence[int]], vocabulary: int, end: int) -> NGrams:
        """Count the trigrams of texts as tokens. Raises `UserError` above `LARGEST_VOCABULARY`."""
        if vocabulary > LARGEST_VOCABULARY:
            raise UserError(f"judge: a vocabulary of {vocabulary:,} tokens is too large; use judge.kind: lexicon")
        keys = np.concatenate([_trigrams(np.array([end, end, *row, end], dtype=np.int64), vocabulary) for row in rows])
        return cls.counted(*np.unique(keys, return_counts=True), vocabulary, end)

    @classmethod
    def counted(cls, keys: Ints, counts: Ints, vocabulary: int, end: int) -> NGrams:
        """Fit the model to different trigrams, ascending, and the number of times that each was seen."""
        tables, seen, known = [NGramCounts.of(keys, counts, vocabulary)], keys, vocabulary**ORDER
        for _ in range(ORDER - 1):
            known //= vocabulary
            seen, before = np.unique(seen % known, return_counts=True)
            tables.insert(0, NGramCounts.of(seen, before, vocabulary))
        return cls(vocabulary, end, tuple(tables))

    def save(self, path: Path) -> None:
        """The trigrams, from which all else follows."""
        largest = self.tables[-1]
        sizes = np.array([self.vocabulary, self.end])
        save_file({"keys": largest.keys, "counts": largest.counts.astype(np.int32), "sizes": sizes}, path)

    @classmethod
    def load(cls, path: Path) -> NGrams:
        held = load_file(path)
        vocabulary, end = held["sizes"].tolist()
        return cls.counted(held["keys"], held["counts"].astype(np.int64), vocabulary, end)

    def following(self, before: Ints, tokens: Ints) -> Floats:
        """P2(token | one before it) of every pair, (m, k) for m tokens `before` and k `tokens`; none is 0."""
        alone = self.tables[0].interpolated(tokens, self.vocabulary, np.full(len(tokens), 1 / self.vocabulary))
        pairs = (before[:, None] * self.vocabulary + tokens).ravel()
        return self.tables[1].interpolated(pairs, self.vocabulary, np.tile(alone, len(before))).reshape(-1, len(tokens))

    def probabilities(self, row: Sequence[int], first: int = 0) -> Floats:
        """P(token | the two before it) of ``row[first:]`` (n,); none is 0."""
        padded = np.array([self.end, self.end, *row], dtype=np.int64)
        trigrams = _trigrams(padded, self.vocabulary)[first:]
        shares = np.full(len(trigrams), 1 / self.vocabulary)
        for order, table in enumerate(self.tables, start=1):
            shares = table.interpolated(trigrams % self.vocabulary**order, self.vocabulary, shares)
        return shares


def _trigrams(row: Ints, vocabulary: int) -> Ints:
    return (row[:-2] * vocabulary + row[1:-1]) * vocabulary + row[2:]


def _at(keys: Ints, values: Floats, wanted: Ints) -> Floats:
    """The values of `wanted` keys (n,); 0 where a key is absent. `keys` ascend, and there is one."""
    places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0.0)
