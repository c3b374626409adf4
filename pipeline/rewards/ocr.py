"""Legibility as a reward: a completion is drawn as an image, PP-OCR reads it, and what it reads is compared with what
was written.

    score = confidence x (1 - error),   error = min(1, (d(written, read) + cut) / (len(written) + cut))

d is Levenshtein's distance in characters, `cut` the number of characters that were not drawn, and the confidence is the
mean over all detected boxes (`pipeline.rewards.reading`). The score is in [0, 1]. It is 0 for a text without a visible
character and where nothing is detected. The prompt is not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pipeline.models.out_of_memory import Room
from pipeline.rewards.base import Completions, as_scores
from pipeline.rewards.ocr_settings import OcrSettings
from pipeline.rewards.reading import Reader, Reading, Written, paddle_reader, plain, render, written

KEPT = 65_536
"""Scores that are kept in memory; then the memory is emptied."""


class OcrReward:
    """The score of each completion by itself; a text that was read before is not read again.

    Images are read by as many threads as torch has, on the CPU; the work is not counted.
    """

    networks: Sequence[Any] = ()

    def __init__(self, cfg: OcrSettings, reader: Reader) -> None:
        self._cfg, self._reader = cfg, reader
        self._known: dict[str, float] = {}

    def __call__(self, completions: Completions) -> Tensor:
        different = dict.fromkeys(completions.texts)
        if len(self._known) + len(different) > KEPT:
            self._known.clear()
        drawn = {text: written(text) for text in different if text not in self._known}
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            readings = pool.map(self._reader, [render(one, self._cfg) for one in drawn.values() if one.lines])
            for text, one in drawn.items():
                self._known[text] = _score(one, next(readings)) if one.lines else 0.0
        return as_scores([self._known[text] for text in completions.texts])


def _score(drawn: Written, read: Reading) -> float:
    return read.confidence * (1.0 - character_error_rate(drawn.text, plain(read.text), drawn.cut))


def character_error_rate(correct: str, read: str, cut: int = 0) -> float:
    """``min(1, (d(correct, read) + cut) / (len(correct) + cut))``; `cut` characters more are correct and were not read.

    `correct` must have a character. Source: Levenshtein 1966; the rate as in ISRI's evaluation of OCR (Rice 1995).

    >>> character_error_rate("film", "fi1m"), character_error_rate("film", "film", 4)
    (0.25, 0.5)
    """
    return min(1.0, (distance(correct, read) + cut) / (len(correct) + cut))


def distance(first: str, second: str) -> int:
    """Fewest characters to insert, delete or replace that turn one text into the other.

    >>> distance("kitten", "sitting")
    3
    """
    above = list(range(len(second) + 1))
    for row, one in enumerate(first, start=1):
        here = [row]
        for column, other in enumerate(second, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (one != other)))
        above = here
    return above[-1]


def load(section: str, cfg: OcrSettings, device: torch.device, room: Room) -> OcrReward:
    """The networks run on the CPU, whatever the device. Raises `UserError` where they cannot be had."""
    return OcrReward(cfg, paddle_reader(section))
