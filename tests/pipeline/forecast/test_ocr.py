"""What reading costs, as predicted before it is done."""

from __future__ import annotations

import pytest

from pipeline.config.loading import load_config
from pipeline.config.ocr import OcrConfig
from pipeline.forecast.advice import predict
from pipeline.forecast.ocr import image_cost, image_lines, reading_hours
from pipeline.rewards.reading import work_of

OCR = {"reward.kind": "ocr"}


def test_an_image_costs_what_its_size_says() -> None:
    # 23 tokens: 92 characters in two lines. A text of that length was an image of 96 x 608 pixels, and its two crops
    # were 1,838 pixels wide together.
    real = work_of(OcrConfig()).of(96 * 608, [919.0, 919.0])[0]
    assert image_cost(OcrConfig(), 23).flops == pytest.approx(real, rel=0.1)
    assert image_cost(OcrConfig(), 46).flops > 1.6 * image_cost(OcrConfig(), 23).flops
    assert image_cost(OcrConfig(size=48), 23).flops > image_cost(OcrConfig(), 23).flops
    assert image_cost(OcrConfig(characters=20), 500) == image_cost(OcrConfig(characters=20), 50), (
        "the rest is not drawn"
    )
    assert image_cost(OcrConfig(), 23).seconds == pytest.approx(0.23, rel=0.25), "measured on one core"


def test_hours_count_every_response_and_every_reader() -> None:
    smoke = load_config("smoke", OCR)
    each = image_cost(OcrConfig(), smoke.train.response_length).seconds
    assert reading_hours(smoke, 3600) == pytest.approx(each)
    assert reading_hours(load_config("smoke", {**OCR, "runtime.threads": 2}), 3600) == pytest.approx(each / 2)
    both = load_config("smoke", {**OCR, "judge.kind": "ocr"})
    assert reading_hours(both, 3600) == pytest.approx(2 * each)
    assert reading_hours(load_config("smoke"), 3600) == 0.0
    assert image_lines(load_config("smoke")) == []
    (line,) = image_lines(both)
    assert line.startswith("ocr: ")
    assert line.endswith("s of a CPU core for each response of 16 tokens (estimated)")


def test_a_forecast_has_the_hours_on_the_cpu() -> None:
    plain, read = predict(load_config("smoke")), predict(load_config("smoke", OCR))
    assert plain
    assert read
    assert "ocr on the CPU" not in plain.hours
    smoke = load_config("smoke", OCR)
    images = smoke.train.updates * smoke.train.batch_size
    assert read.hours["ocr on the CPU"] == pytest.approx(reading_hours(smoke, images))
    greedy = predict(load_config("smoke", {**OCR, "algorithm": "remax"}))
    assert greedy
    assert greedy.hours["ocr on the CPU"] > read.hours["ocr on the CPU"]
