"""VADER (Hutto and Gilbert 2014): rule-based sentiment for real text, offline.

A bag of words with rules: it can be hacked by piling up happy words, so read it beside the perplexity
under the reference, which such text cannot keep low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.config.rewards import Scorer
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions, as_scores


class LexiconReward:
    """VADER's compound score of prompt and completion together, in [-1, 1]."""

    networks: Sequence[Any] = ()

    def __init__(self) -> None:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        self._analyzer = SentimentIntensityAnalyzer()

    def __call__(self, completions: Completions) -> Tensor:
        pairs = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([self._analyzer.polarity_scores(prompt + text)["compound"] for prompt, text in pairs])


def load(section: str, cfg: Scorer, device: torch.device, room: Room) -> LexiconReward:
    """It has nothing to configure."""
    return LexiconReward()
