"""What reading costs, as predicted before it is done."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.forecast.advice import predict
from pipeline.forecast.ocr import SPEED, image_seconds, reading_hours
from pipeline.rewards.ocr_settings import OcrSettings
from pipeline.rewards.reading import work

OCR = {"reward.kind": "ocr"}
EACH = image_seconds(OcrSettings(), 16) / 3600
"""Hours of one core for a response of the profile `smoke`."""


def test_an_image_costs_what_its_size_says() -> None:
    # 23 tokens: 92 characters in two lines. A text of that length was an image of 96 x 608 pixels, and its two crops
    # were 1,838 pixels wide together.
    found, read = (work(*size)[0] for size in ((96 * 608, []), (0, [919.0, 919.0])))
    plain = image_seconds(OcrSettings(), 23)
    assert plain == pytest.approx(found / SPEED["detector"] + read / SPEED["recogniser"], rel=0.1)
    assert plain == pytest.approx(0.23, rel=0.25), "measured on one core"
    assert image_seconds(OcrSettings(), 46) > 1.6 * plain
    assert image_seconds(OcrSettings(size=48), 23) > plain
    assert image_seconds(OcrSettings(), 500) == image_seconds(OcrSettings(), 400), "the rest is not drawn"


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        ({}, 0),
        (OCR, 2),
        ({"judge.kind": "ocr"}, 3),
        ({**OCR, "judge.kind": "ocr"}, 5),
        ({**OCR, "runtime.threads": 2}, 1),
    ],
)
def test_every_reader_reads_every_response_that_it_is_given(changes: dict[str, Any], images: int) -> None:
    assert reading_hours(load_config("smoke", changes), rewarded=2, judged=3) == pytest.approx(images * EACH)


@pytest.mark.parametrize(
    ("changes", "stage", "images"),
    [
        (OCR, "reward", 64),  # for calibration
        ({**OCR, "reward.against": "reference"}, "reward", 64 + 4 * 384),  # two opponents for each of 384 prompts
        (OCR, "reference", 8 * 64),
        ({"judge.kind": "ocr"}, "reward", 64 + 2 * 320),  # and pairs
        ({"judge.kind": "ocr"}, "reference", 8 * 64),
        ({**OCR, "algorithm": "a_star_po"}, "values", 16 * 256),
        (OCR, "evaluate", 64),
        ({"judge.kind": "ocr", "evaluate.best_of": 8}, "evaluate", 64),  # the chosen one of eight
        ({**OCR, "evaluate.best_of": 8, "runtime.processes": 2}, "evaluate", 8 * 64 / 2),
        (OCR, "ocr on the CPU", 8 * 16),  # updates of so many episodes
        ({**OCR, "algorithm": "remax"}, "ocr on the CPU", 2 * 8 * 16),
    ],
)
def test_stages_read_what_they_score(changes: dict[str, Any], stage: str, images: float) -> None:
    config = load_config("smoke", changes)
    found = predict(config)
    assert found is not None
    hours = found.shared_hours | found.own_hours | found.hours
    assert hours[stage] == pytest.approx(images * EACH, rel=0.01)
