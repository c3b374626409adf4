"""VADER (Hutto and Gilbert 2014): rule-based sentiment for real text, offline.

A bag of words with rules: it can be hacked by piling up happy words. As a judge it has a guard against such text
(`pipeline.rewards.fluency`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.rewards.base import Completions, as_scores


class LexiconReward:
    """VADER's compound score of prompt and completion together, in [-1, 1]."""

    networks: Sequence[Any] = ()

    def __init__(self) -> None:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        self._analyzer = SentimentIntensityAnalyzer()

    def __call__(self, completions: Completions) -> Tensor:
        pairs = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([self.score(prompt + text) for prompt, text in pairs])

    def praises(self, word: str) -> bool:
        """Return whether a word in lower case counts as praise."""
        return bool(self._analyzer.lexicon.get(word, 0.0) > 0)

    def score(self, text: str) -> float:
        """Score one text."""
        compound: float = self._analyzer.polarity_scores(text)["compound"]
        return compound
