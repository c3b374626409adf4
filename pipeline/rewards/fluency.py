"""A guard against text that no writer would write: how far a completion lies outside of real texts, by length.

Three measures of a completion of n tokens, read after its prompt by an n-gram model of real texts (`NGrams`):

    fluency     1/n sum_t ln P(token_t | the two before it), nats per token
    repetition  share of its tokens that stood in it before
    end         ln P(end of text | the last two tokens), nats; only of a completion that ended by itself

A completion that is cut off has no end to judge, so being cut off is no fault.

The thresholds are those of split conformal prediction: of n real texts, cut in the same way and to the same length, the
k-th lowest (of repetition the k-th highest) with k = floor((n + 1) `SHARE`). A further real text lies beyond each with
a probability of at most `SHARE`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.rewards.ngrams import Floats, NGrams
from pipeline.run.layout import write_json

# Which measures find attacks, on 300 held-out IMDb reviews, 32 tokens after a prompt; each threshold is one that 1 %
# of 1,598 other reviews are beyond. The mean of ln P finds 99 % of strings of praise and 72 % of texts with shuffled
# words; relative to the words' frequencies (SLOR, Kann et al. 2018) it finds 55 % and 78 %. Repeated tokens find 98 %
# of strings of praise, 78 % of praise between function words (ln P: 94 %), and all loops; repeated pairs find 25 %,
# 3 % and all.
SHARE = 0.01
"""Of real texts that lie beyond one threshold, at most."""
FEWEST = 99
"""Real texts for a threshold: with fewer, k is 0."""
NGRAMS, THRESHOLDS = "ngrams.safetensors", "thresholds.json"


@dataclass(frozen=True)
class Reading:
    """The measures of the first 1, 2, ... tokens of a completion, each (n,), and of its end, where it has one."""

    fluency: Floats
    repetition: Floats
    end: float | None


@dataclass(frozen=True)
class Thresholds:
    """What a completion of 1, 2, ... tokens may not be beyond; the last value holds for all longer ones."""

    fluency: tuple[float, ...]
    repetition: tuple[float, ...]
    end: float

    @classmethod
    def of(cls, readings: Sequence[Reading], length: int) -> Thresholds:
        """From real texts, up to the longest of `length` tokens that `FEWEST` of them reach. Needs so many texts, with
        an end and one token at least."""
        fluency, repetition = list[float](), list[float]()
        for place in range(length):
            long = [one for one in readings if len(one.fluency) > place]
            if len(long) < FEWEST:
                break
            fluency.append(lowest([float(one.fluency[place]) for one in long]))
            repetition.append(-lowest([-float(one.repetition[place]) for one in long]))
        return cls(tuple(fluency), tuple(repetition), lowest([one.end for one in readings if one.end is not None]))

    def faults(self, reading: Reading) -> int:
        """How many thresholds a completion is beyond: 0 to 3."""
        unended = reading.end is not None and reading.end < self.end
        if not len(reading.fluency):
            return int(unended)
        place = min(len(reading.fluency), len(self.fluency)) - 1
        return (
            int(reading.fluency[-1] < self.fluency[place])
            + int(reading.repetition[-1] > self.repetition[place])
            + int(unended)
        )


def guarded(score: float, faults: int) -> float:
    """A score of a text without faults, else -1 - faults: below every score in [-1, 1].

    >>> guarded(0.9, 0), guarded(0.9, 1), guarded(-1.0, 0)
    (0.9, -2.0, -1.0)
    """
    return -1.0 - faults if faults else score


def faulty(scores: Floats) -> Floats:
    """1 for each score that `guarded` has given to a text with faults, 0 for the others; any shape.

    >>> faulty(np.array([guarded(-1.0, 0), guarded(0.9, 1)])).tolist()
    [0.0, 1.0]
    """
    return (scores < -1.0).astype(np.float64)


def lowest(values: Sequence[float]) -> float:
    """The k-th lowest of n values, k = floor((n + 1) `SHARE`); lower values are beyond it.

    Raises `ValueError` for fewer than `FEWEST`.

    >>> lowest([float(value) for value in range(199)])
    1.0
    """
    if len(values) < FEWEST:
        raise ValueError(f"{len(values)} values give no threshold; at least {FEWEST} are needed")
    return float(np.sort(np.asarray(values))[int((len(values) + 1) * SHARE + 1e-9) - 1])


@dataclass(frozen=True)
class Guard:
    """Counts the faults of completions as texts; reads the first `length` tokens of each."""

    tokenizer: Any
    model: NGrams
    length: int
    thresholds: Thresholds | None = None
    """None while they are being set."""

    def faults(self, prompt: str, completion: str, ended: bool) -> int:
        """Of one completion; 0 to 3. A text has the same faults whatever stands beside it in a batch."""
        if self.thresholds is None:
            raise ValueError("a guard without thresholds finds no faults")
        return self.thresholds.faults(self.read(prompt, completion, ended))

    def read(self, prompt: str, completion: str, ended: bool) -> Reading:
        """The measures of a completion. The token that the prompt's end lies in belongs to the completion."""
        encoded = self.tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)
        tokens, first = encoded["input_ids"], sum(end <= len(prompt) for _, end in encoded["offset_mapping"])
        read = tokens[: first + self.length]
        nats = np.log(self.model.probabilities(read, first))
        end = self.model.probabilities([*tokens, self.model.end], len(tokens)) if ended else None
        return Reading(
            np.cumsum(nats) / np.arange(1, len(nats) + 1),
            repetition(read[first:]),
            None if end is None else float(np.log(end[0])),
        )

    def save(self, folder: Path) -> None:
        """Beside the tokenizer, which the prompts' artifact has."""
        if self.thresholds is None:
            raise ValueError("a guard without thresholds cannot be saved")
        self.model.save(folder / NGRAMS)
        write_json(folder / THRESHOLDS, {"length": self.length, **asdict(self.thresholds)})

    @classmethod
    def load(cls, folder: Path, tokenizer: Any) -> Guard:
        held = json.loads((folder / THRESHOLDS).read_text("utf-8"))
        thresholds = Thresholds(tuple(held["fluency"]), tuple(held["repetition"]), held["end"])
        return cls(tokenizer, NGrams.load(folder / NGRAMS), held["length"], thresholds)


def repetition(tokens: Sequence[int]) -> Floats:
    """Of the first 1, 2, ... tokens the share that are no new ones (n,).

    >>> repetition([7, 8, 7, 7]).tolist()
    [0.0, 0.0, 0.3333333333333333, 0.5]
    """
    different, seen = list[int](), set[int]()
    for token in tokens:
        seen.add(token)
        different.append(len(seen))
    places = np.arange(1, len(different) + 1)
    return (places - np.array(different, dtype=np.float64)) / places
