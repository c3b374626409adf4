"""VADER as a judge of real text, and a guard against text that no writer would write: how far a completion lies outside
of real texts.

VADER (Hutto and Gilbert 2014) is a bag of words with rules: it can be hacked by piling up happy words.

Measures of a completion, read after its prompt, most of them of its first 1, 2, ... tokens or words. P is an n-gram
model of real texts (`NGrams`):

    fluency     1/n sum_t ln P(token_t | the two before it), nats per token
    repetition  share of the tokens that stood in it before
    order       1/m sum_i ln P(word_i | the word before it), less its mean over all orders of the words, nats per word
    copied      share of the words in phrases that stand in the texts (`phrases_of`)
    praise      share of the words that the lexicon holds for praise
    content     - sum_t ln P(token_t | the two before it) of the tokens read, nats: its information
    end         ln P(end of text | the last two tokens), nats; only of a completion that ended by itself

For `order`, a word is its first token, after the last token of the word before it. A text of one word has order 0. A
completion that is cut off has no end to judge, so being cut off is no fault.

The thresholds are those of split conformal prediction: of n real texts, cut in the same way, the k-th lowest or highest
with k = floor((n + 1) share). Of further real texts that reach a length, at most the share lies beyond its threshold
there; of those that end there, about that share. Content and end keep the bound whatever the length.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.base import Completions, TextScore, as_scores
from pipeline.rewards.ngrams import Floats, NGrams
from pipeline.run.layout import write_json

WORDS = 4
"""In a phrase."""
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
Digests = NDArray[np.uint64]


def words_of(text: str, cut: int = 0) -> tuple[list[str], list[str]]:
    """The words that end before the character `cut`, and the others; without case and punctuation.

    >>> words_of("It was. Really GOOD, isn't it?", 5)
    (['it'], ['was', 'really', 'good', "isn't", 'it'])
    """
    sides: tuple[list[str], list[str]] = [], []
    for word in _WORD.finditer(text):
        sides[word.end() > cut].append(word.group().casefold())
    return sides


def phrases_of(texts: Iterable[str]) -> Digests:
    """All phrases of some texts, as different digests of 64 bits."""
    return np.unique(np.fromiter((one for text in texts for one in _digests(words_of(text)[1])), np.uint64))


def copied(phrases: Digests, words: Sequence[str], before: Sequence[str]) -> Floats:
    """Return the share of the first 1, 2, ... words in known phrases (n,); these may begin in words `before`.

    >>> known = phrases_of(["the film is good, and short"])
    >>> copied(known, ["is", "good", "and", "dull"], ["the", "film"]).tolist()
    [0.0, 1.0, 1.0, 0.75]
    """
    context = [*before][-(WORDS - 1) :]
    known = np.isin(np.fromiter(_digests([*context, *words]), np.uint64), phrases)
    covered, shares = np.zeros(len(context) + len(words), dtype=np.bool_), np.zeros(len(words))
    for place in range(len(words)):
        last = len(context) + place
        if last >= WORDS - 1 and known[last - WORDS + 1]:
            covered[last - WORDS + 1 : last + 1] = True
        shares[place] = covered[len(context) : last + 1].mean()
    return shares


def _digests(words: Sequence[str]) -> Iterator[int]:
    for start in range(len(words) - WORDS + 1):
        phrase = " ".join(words[start : start + WORDS])
        yield int.from_bytes(hashlib.blake2b(phrase.encode(), digest_size=8).digest(), "little")


class FaultRule(NamedTuple):
    """A fault: a measure beyond what all but a share of real texts have."""

    measure: str
    above: bool
    share: float


RULES = {
    "unlikely": FaultRule("fluency", False, 0.01),
    "predictable": FaultRule("fluency", True, 0.01),
    "repetitive": FaultRule("repetition", True, 0.01),
    "disordered": FaultRule("order", False, 0.03),
    "copied": FaultRule("copied", True, 0.05),
    "gushing": FaultRule("praise", True, 0.01),
    "thin": FaultRule("content", False, 0.1),
    "unended": FaultRule("end", False, 0.01),
}
FEWEST = 99
"""Real texts for a threshold: with fewer, k is 0."""
NGRAMS, PHRASES, THRESHOLDS = "ngrams.safetensors", "phrases.safetensors", "thresholds.json"

Reading = Mapping[str, Floats]
"""Each measure of the first 1, 2, ... tokens or words (n,). Content has one value; end has one, or none where the
completion was cut off."""
Thresholds = Mapping[str, Sequence[float]]
"""Bounds of every rule for 1, 2, ... tokens or words; the last value holds for all longer ones."""


def thresholds_of(readings: Sequence[Reading]) -> Thresholds:
    """Fit thresholds to texts, for each length that `FEWEST` of them reach. Raises `ValueError` for fewer texts."""
    found = dict[str, tuple[float, ...]]()
    for name, rule in RULES.items():
        columns, sign, bounds = [one[rule.measure] for one in readings], -1.0 if rule.above else 1.0, list[float]()
        for place in count():
            values = sorted(sign * float(one[place]) for one in columns if len(one) > place)
            if len(values) < FEWEST and not bounds:
                raise ValueError(f"{len(values)} values give no threshold; at least {FEWEST} are needed")
            if len(values) < FEWEST:
                break
            bounds.append(sign * values[int((len(values) + 1) * rule.share + 1e-9) - 1])
        found[name] = tuple(bounds)
    return found


def faults(reading: Reading, thresholds: Thresholds) -> list[str]:
    """The rules that a completion breaks."""
    broken = []
    for name, rule in RULES.items():
        values, bounds = reading[rule.measure], thresholds[name]
        if len(values):
            value, bound = float(values[-1]), bounds[min(len(values), len(bounds)) - 1]
            if value > bound if rule.above else value < bound:
                broken.append(name)
    return broken


class LexiconReward(TextScore):
    """VADER's compound score of prompt and completion together, in [-1, 1]."""

    def __init__(self) -> None:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        self._analyzer = SentimentIntensityAnalyzer()

    def praises(self, word: str) -> bool:
        return bool(self._analyzer.lexicon.get(word, 0.0) > 0)  # a word in lower case

    def score(self, prompt: str, text: str) -> float:
        compound: float = self._analyzer.polarity_scores(prompt + text)["compound"]
        return compound


@dataclass(frozen=True)
class FluencyGuard:
    """A judge of real text: a completion without faults in its first `length` tokens has the lexicon's score, others -1
    less their number."""

    tokenizer: Any
    model: NGrams
    phrases: Digests
    lexicon: LexiconReward
    length: int
    thresholds: Thresholds
    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        rows = zip(completions.prompts, completions.texts, completions.episodes.ended.tolist(), strict=True)
        return as_scores([self.score(*row) for row in rows])

    def score(self, prompt: str, completion: str, ended: bool) -> float:
        broken = len(self.faults(prompt, completion, ended))
        return -1.0 - broken if broken else self.lexicon.score(prompt, completion)

    def faults(self, prompt: str, completion: str, ended: bool) -> list[str]:
        return faults(self.read(prompt, completion, ended), self.thresholds)

    def read(self, prompt: str, completion: str, ended: bool) -> Reading:
        """The measures of a completion. The token or word that the prompt's end lies in belongs to the completion."""
        text = prompt + completion
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens, places = encoded["input_ids"], encoded["offset_mapping"]
        first = sum(end <= len(prompt) for _, end in places)
        read = tokens[: first + self.length]
        nats = np.log(self.model.probabilities(read, first))
        starts = [at for at in range(first, len(read)) if at == first or _begins_a_word(text, *places[at])]
        inside = text if len(read) == len(tokens) else text[: places[len(read) - 1][1]]
        before, words = words_of(inside, len(prompt))
        end = self.model.probabilities([*tokens, self.model.end], len(tokens)) if ended else np.zeros(0)
        return {
            "fluency": _means(nats),
            "repetition": repetition(read[first:]),
            "order": order(self.model, read, starts),
            "copied": copied(self.phrases, words, before),
            "praise": _means(np.array([self.lexicon.praises(word) for word in words], dtype=np.float64)),
            "content": np.array([-nats.sum()]),
            "end": np.log(end),
        }

    def save(self, folder: Path) -> None:
        """Write all but the tokenizer, which the prompts' artifact has."""
        self.model.save(folder / NGRAMS)
        save_file({"digests": self.phrases}, folder / PHRASES)
        write_json(folder / THRESHOLDS, {"length": self.length, "thresholds": dict(self.thresholds)})


def _begins_a_word(text: str, start: int, end: int) -> bool:
    # A token may include the space before.
    return bool(text[start:end].strip()) and (start == 0 or text[start].isspace() or text[start - 1].isspace())


def _means(values: Floats) -> Floats:
    return np.cumsum(values) / np.arange(1, len(values) + 1)


def repetition(tokens: Sequence[int]) -> Floats:
    """Return the share of the first 1, 2, ... tokens that are no new ones (n,).

    >>> repetition([7, 8, 7, 7]).tolist()
    [0.0, 0.0, 0.3333333333333333, 0.5]
    """
    known = np.ones(len(tokens))
    known[np.unique(np.asarray(tokens, dtype=np.int64), return_index=True)[1]] = 0
    return _means(known)


def order(model: NGrams, tokens: Sequence[int], starts: Sequence[int]) -> Floats:
    """Gain of the first 1, 2, ... words, which begin at `starts`, over a random order of the same words, (m,) nats per
    word.

    In a random order of k words, each stands first with probability 1/k, and each pair of different words stands next
    to each other, in that order, with probability 1/k. So the mean over all orders needs no sampling.
    """
    if not starts:
        return np.zeros(0)
    firsts = np.array([tokens[at] for at in starts])
    before = tokens[starts[0] - 1] if starts[0] else model.end
    lasts = np.array([before, *(tokens[at - 1] for at in starts[1:]), tokens[-1]])
    nats = np.log(model.following(lasts, firsts))  # (m + 1, m): row 0 is the token before the first word
    own, after_itself = np.cumsum(np.diagonal(nats)), np.cumsum(np.diagonal(nats, -1))
    pairs = np.diagonal(np.cumsum(np.cumsum(nats, axis=0), axis=1), -1)  # of the first k words, all that may follow
    words = np.arange(1, len(starts) + 1)
    gain = (own - (pairs - after_itself) / words) / words
    return np.where(words > 1, gain, 0.0)


def load(folder: Path) -> FluencyGuard:
    """The judge that the stage `judge` left."""
    held, tokenizer = json.loads((folder / THRESHOLDS).read_text("utf-8")), load_tokenizer(folder / "tokenizer")
    model, phrases = NGrams.load(folder / NGRAMS), load_file(folder / PHRASES)["digests"]
    return FluencyGuard(tokenizer, model, phrases, LexiconReward(), held["length"], held["thresholds"])
