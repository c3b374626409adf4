"""What it takes to read completions as images: by PP-OCR, on the CPU, also where the policy is on a card."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.config.ocr import OcrConfig
from pipeline.config.trial import TrialConfig
from pipeline.forecast.subject import TOKENS_PER_WORD
from pipeline.rewards.reading import CROP, work_of
from pipeline.rewards.rendering import GRID

LETTERS, WIDE, HIGH = 6.0, 0.52, 1.17
"""Characters of a word with its space; width of a character and height of a line, as multiples of the font's size:
English in DejaVu Sans."""
SPEED = {"detector": 20e9, "recogniser": 70e9}
"""FLOP/s of one core of a server with AVX-512, measured. The maps of the detector have few channels, which makes it
slower."""


@dataclass(frozen=True)
class ImageCost:
    """What one image takes."""

    flops: float
    seconds: float
    """Of one core."""


def readers(config: TrialConfig) -> list[OcrConfig]:
    """The settings of every reward, part and judge of the kind `ocr`."""
    parts = (*config.judges.values(), *config.reward.scorers().values())
    return [part.ocr for part in parts if part.ocr is not None]


def image_cost(cfg: OcrConfig, tokens: int) -> ImageCost:
    """Of a response of so many tokens: an estimate, from the size of its image.

    Turned images are somewhat larger, which is left out."""
    letters = min(tokens / TOKENS_PER_WORD * LETTERS, cfg.characters)
    lines = math.ceil(letters / cfg.columns)
    sides = min(letters, cfg.columns) * WIDE * cfg.size, lines * HIGH * cfg.size
    height, width = (GRID * math.ceil((side + cfg.size) / GRID) for side in sides)
    work = work_of(cfg)
    found, _ = work.of(height * width, [])
    read, _ = work.of(0, [letters / lines * WIDE / HIGH * CROP] * lines)
    return ImageCost(found + read, found / SPEED["detector"] + read / SPEED["recogniser"])


def reading_hours(config: TrialConfig, images: float) -> float:
    """Hours of reading so many responses; 0 where nothing is read.

    A text that comes again is read once, but counted each time."""
    each = sum(image_cost(cfg, config.train.response_length).seconds for cfg in readers(config))
    return images * each / (config.runtime.threads * config.runtime.processes) / 3600


def image_lines(config: TrialConfig) -> list[str]:
    """What an image takes, in words; one line for each way of reading."""
    tokens = config.train.response_length
    return [
        f"ocr: {cost.flops / 1e9:.2g} GFLOP and {cost.seconds:.2g} s of a CPU core for each response of {tokens} tokens"
        " (estimated)"
        for cost in dict.fromkeys(image_cost(cfg, tokens) for cfg in readers(config))
    ]
