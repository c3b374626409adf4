"""What it takes to read responses as images: by PP-OCR, on the CPU, also where the policy is on a card.

A text that comes again is read once, but counted each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.config.ocr import OcrConfig
from pipeline.config.rewards import Scorer
from pipeline.config.trial import TrialConfig
from pipeline.rewards.reading import CROP, work_of
from pipeline.rewards.rendering import GRID

TOKENS_PER_WORD = 1.5
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


def image_cost(cfg: OcrConfig, tokens: int) -> ImageCost:
    """Cost of a response of so many tokens: an estimate, from the size of its image.

    Turned images are somewhat larger, which is left out. Files that are not there or are no networks, which a trial
    refuses before it starts, count as the networks that rapidocr brings: a plan has to come as far as that refusal.
    """
    letters = min(tokens / TOKENS_PER_WORD * LETTERS, cfg.characters)
    lines = math.ceil(letters / cfg.columns)
    sides = min(letters, cfg.columns) * WIDE * cfg.size, lines * HIGH * cfg.size
    height, width = (GRID * math.ceil((side + cfg.size) / GRID) for side in sides)
    try:
        work = work_of(cfg)
    except Exception:  # onnxruntime, where it is installed at all, raises classes of its own
        work = work_of(OcrConfig())
    found, _ = work.of(height * width, [])
    read, _ = work.of(0, [letters / lines * WIDE / HIGH * CROP] * lines)
    return ImageCost(found + read, found / SPEED["detector"] + read / SPEED["recogniser"])


def reading_hours(config: TrialConfig, rewarded: float, judged: float, processes: int = 1) -> float:
    """Hours of reading so many responses by every reward, and so many by every judge, of the kind `ocr`."""

    def seconds(parts: Iterable[Scorer]) -> float:
        return sum(image_cost(part.ocr, config.train.response_length).seconds for part in parts if part.ocr is not None)

    rewards, judges = seconds(config.reward.scorers().values()), seconds(config.judges.values())
    return (rewarded * rewards + judged * judges) / (config.runtime.threads * processes) / 3600


def image_lines(config: TrialConfig) -> list[str]:
    """What an image takes, in words; one line for each way of reading."""
    tokens, parts = config.train.response_length, [*config.judges.values(), *config.reward.scorers().values()]
    return [
        f"ocr: {cost.flops / 1e9:.2g} GFLOP and {cost.seconds:.2g} s of a CPU core for each response of {tokens} tokens"
        " (estimated)"
        for cost in dict.fromkeys(image_cost(part.ocr, tokens) for part in parts if part.ocr is not None)
    ]
