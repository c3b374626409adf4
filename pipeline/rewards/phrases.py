"""The words of a text, and which of them are copied: phrases of `WORDS` words that stand in the texts that a judge
knows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from pipeline.rewards.ngrams import found

WORDS = 4
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(text: str, cut: int = 0) -> tuple[list[str], list[str]]:
    """The words that end before the character `cut`, and the others; without case and punctuation.

    >>> words_of("It was. Really GOOD, isn't it?", 5)
    (['it'], ['was', 'really', 'good', "isn't", 'it'])
    """
    sides: tuple[list[str], list[str]] = [], []
    for word in _WORD.finditer(text):
        sides[word.end() > cut].append(word.group().casefold())
    return sides


@dataclass(frozen=True)
class Phrases:
    """The known phrases, as ascending digests of 64 bits."""

    digests: NDArray[np.uint64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Phrases:
        """All phrases of some texts."""
        return cls(np.unique(np.fromiter((one for text in texts for one in _digests(words_of(text)[1])), np.uint64)))

    def copied(self, words: Sequence[str], before: Sequence[str]) -> NDArray[np.float64]:
        """Of the first 1, 2, ... words the share that lies in known phrases (n,); these may begin in words `before`.

        >>> Phrases.of(["the film is good, and short"]).copied(["is", "good", "and", "dull"], ["the", "film"]).tolist()
        [0.0, 1.0, 1.0, 0.75]
        """
        context = [*before][-(WORDS - 1) :]
        _, known = found(self.digests, np.fromiter(_digests([*context, *words]), np.uint64))
        covered, shares = np.zeros(len(context) + len(words), dtype=np.bool_), np.zeros(len(words))
        for place in range(len(words)):
            last = len(context) + place
            if last >= WORDS - 1 and known[last - WORDS + 1]:
                covered[last - WORDS + 1 : last + 1] = True
            shares[place] = covered[len(context) : last + 1].mean()
        return shares

    def save(self, path: Path) -> None:
        """As safetensors."""
        save_file({"digests": self.digests}, path)

    @classmethod
    def load(cls, path: Path) -> Phrases:
        return cls(load_file(path)["digests"])


def _digests(words: Sequence[str]) -> Iterator[int]:
    for start in range(len(words) - WORDS + 1):
        phrase = " ".join(words[start : start + WORDS])
        yield int.from_bytes(hashlib.blake2b(phrase.encode(), digest_size=8).digest(), "little")
