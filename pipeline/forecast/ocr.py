"""What it takes to read responses as images: by PP-OCR, on the CPU, also where the policy is on a card.

A text that comes again is read once, but counted each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipeline.config.trial import TrialConfig
from pipeline.rewards.ocr_settings import OcrSettings
from pipeline.rewards.reading import CROP, work
from pipeline.rewards.rendering import CHARACTERS, COLUMNS, GRID
from pipeline.rewards.settings import Scorer

TOKENS_PER_WORD = 1.5
LETTERS, WIDE, HIGH = 6.0, 0.52, 1.17
"""Characters of a word with its space; width of a character and height of a line, as multiples of the font's size:
English in DejaVu Sans."""
SPEED = {"detector": 20e9, "recogniser": 70e9}
"""FLOP/s of one core of a server with AVX-512, measured. The maps of the detector have few channels, which makes it
slower."""


def image_seconds(cfg: OcrSettings, tokens: int) -> float:
    """Seconds of one core for a response of so many tokens: an estimate, from the size of its image.

    Turned images are somewhat larger, which is left out.
    """
    letters = min(tokens / TOKENS_PER_WORD * LETTERS, CHARACTERS)
    lines = math.ceil(letters / COLUMNS)
    sides = min(letters, COLUMNS) * WIDE * cfg.size, lines * HIGH * cfg.size
    height, width = (GRID * math.ceil((side + cfg.size) / GRID) for side in sides)
    found, _ = work(height * width, [])
    read, _ = work(0, [letters / lines * WIDE / HIGH * CROP] * lines)
    return found / SPEED["detector"] + read / SPEED["recogniser"]


def reading_hours(config: TrialConfig, rewarded: float, judged: float, processes: int = 1) -> float:
    """Hours of reading so many responses by every reward, and so many by every judge, of the kind `ocr`."""

    def seconds(parts: Iterable[Scorer]) -> float:
        return sum(image_seconds(part.chosen, config.train.response_length) for part in parts if part.kind == "ocr")

    rewards, judges = seconds(config.reward.scorers().values()), seconds(config.judges.values())
    return (rewarded * rewards + judged * judges) / (config.runtime.threads * processes) / 3600
