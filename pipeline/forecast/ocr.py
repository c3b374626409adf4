"""What it takes to read completions as images: by PP-OCR, on the CPU, also where the policy is on a card."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.ocr import OcrConfig
from pipeline.config.rewards import LEARNED, Scorer, is_judged
from pipeline.config.trial import TrialConfig
from pipeline.forecast.subject import TOKENS_PER_WORD
from pipeline.rewards.reading import CROP, Work, work_of
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
    return [*_of(config.judges.values()), *_of(config.reward.scorers().values())]


def _of(parts: Iterable[Scorer]) -> list[OcrConfig]:
    return [part.ocr for part in parts if part.ocr is not None]


def image_cost(cfg: OcrConfig, tokens: int) -> ImageCost:
    """Of a response of so many tokens: an estimate, from the size of its image.

    Turned images are somewhat larger, which is left out."""
    letters = min(tokens / TOKENS_PER_WORD * LETTERS, cfg.characters)
    lines = math.ceil(letters / cfg.columns)
    sides = min(letters, cfg.columns) * WIDE * cfg.size, lines * HIGH * cfg.size
    height, width = (GRID * math.ceil((side + cfg.size) / GRID) for side in sides)
    work = _work(cfg)
    found, _ = work.of(height * width, [])
    read, _ = work.of(0, [letters / lines * WIDE / HIGH * CROP] * lines)
    return ImageCost(found + read, found / SPEED["detector"] + read / SPEED["recogniser"])


def _work(cfg: OcrConfig) -> Work:
    """As `work_of`. Of files that are not there or are no networks, which a trial refuses before it starts, that of the
    networks that rapidocr brings: a plan has to come as far as that refusal."""
    bundled = work_of(OcrConfig())
    if not all(Path(path).is_file() for path in (cfg.detector, cfg.recogniser) if path is not None):
        return bundled
    try:
        return work_of(cfg)
    except Exception:  # onnxruntime, where it is installed at all, raises classes of its own
        return bundled


def reading_hours(config: TrialConfig, images: float) -> float:
    """Hours of reading so many responses by every reward and judge; 0 where nothing is read.

    A text that comes again is read once, but counted each time."""
    return _hours(config, readers(config), images, config.runtime.processes)


def shared_reading_hours(config: TrialConfig) -> dict[str, float]:
    """By stage, hours of reading for what the trials of a study have in common; no stage that reads nothing."""
    reward, data, sampled = config.reward, config.data, config.evaluate
    mine, judges = _of(reward.scorers().values()), _of(config.judges.values())
    judged = any(part.kind in LEARNED and is_judged(part.preferences) for part in reward.scorers().values())
    pairs = 2 * (reward.pairs // config.rounds + reward.heldout_pairs) * judged
    opponents = reward.opponents * (data.train_prompts + data.heldout_prompts) * (reward.against != "none")
    drawn = sampled.reference_draws * sampled.prompts
    values = config.values.samples * data.train_prompts * config.needs_samples
    hours = {
        "reward": _hours(config, mine, reward.calibration_samples + opponents)
        + _hours(config, judges, reward.calibration_samples + pairs),
        "reference": _hours(config, [*mine, *judges], drawn),
        "values": _hours(config, mine, values),
    }
    return {stage: spent for stage, spent in hours.items() if spent}


def _hours(config: TrialConfig, ways: Iterable[OcrConfig], images: float, processes: int = 1) -> float:
    """Hours of reading so many responses in each of these ways."""
    each = sum(image_cost(cfg, config.train.response_length).seconds for cfg in ways)
    return images * each / (config.runtime.threads * processes) / 3600


def image_lines(config: TrialConfig) -> list[str]:
    """What an image takes, in words; one line for each way of reading."""
    tokens = config.train.response_length
    return [
        f"ocr: {cost.flops / 1e9:.2g} GFLOP and {cost.seconds:.2g} s of a CPU core for each response of {tokens} tokens"
        " (estimated)"
        for cost in dict.fromkeys(image_cost(cfg, tokens) for cfg in readers(config))
    ]
