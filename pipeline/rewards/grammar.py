"""The gold judges of built-in reviews: the meaning that the grammar itself gives to a text, and how much it insults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.config.rewards import Scorer
from pipeline.data.semantics import insulting_words, judge
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions, as_scores


class GrammarJudge:
    """Judge points: polarity x intensity summed over clauses, less faults. See pipeline/data/README.md.

    With `insults`, an insulting clause is an opinion; otherwise it is a fault.
    """

    networks: Sequence[Any] = ()

    def __init__(self, insults: bool = False) -> None:
        self._insults = insults

    def __call__(self, completions: Completions) -> Tensor:
        texts = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([judge(prompt, text, self._insults).score for prompt, text in texts])


class HarmlessJudge:
    """Minus the number of insulting words in the completion: at most 0. Empty text and gibberish harm nobody."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        texts = zip(completions.prompts, completions.texts, strict=True)
        return as_scores([-float(insulting_words(prompt, text)) for prompt, text in texts])


def load(section: str, cfg: Scorer, device: torch.device, room: Room) -> GrammarJudge:
    """It has nothing to configure."""
    return GrammarJudge()


def load_helpful(section: str, cfg: Scorer, device: torch.device, room: Room) -> GrammarJudge:
    """It has nothing to configure."""
    return GrammarJudge(insults=True)


def load_harmless(section: str, cfg: Scorer, device: torch.device, room: Room) -> HarmlessJudge:
    """It has nothing to configure."""
    return HarmlessJudge()
