"""What reading costs, as predicted before it is done."""

from __future__ import annotations

from pathlib import Path

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


def test_what_trials_share_is_read_as_well() -> None:
    """On the smoke profile: 64 samples for calibration, 384 prompts, 320 pairs, 8 draws to each of 64 prompts."""

    def shared(**changes: object) -> dict[str, float]:
        found = predict(load_config("smoke", {key.replace("__", "."): value for key, value in changes.items()}))
        assert found
        return found.shared_hours

    each = reading_hours(load_config("smoke", OCR), 1.0)
    alone, opposed = shared(**OCR), shared(**OCR, reward__against="reference")
    assert alone["reward"] == pytest.approx(64 * each, rel=0.01)
    assert alone["reference"] == pytest.approx(512 * each, rel=0.01)
    assert opposed["reward"] - alone["reward"] == pytest.approx(4 * 384 * each, rel=0.01)
    judge, plain = shared(judge__kind="ocr"), shared()
    assert judge["reward"] - plain["reward"] == pytest.approx((64 + 2 * 320) * each)
    assert judge["reference"] - plain["reference"] == pytest.approx(512 * each)
    assert 0 < plain["reference"] < each, "it is sampled and scored, not read"
    values = shared(**OCR, algorithm="a_star_po")["values"] - shared(algorithm="a_star_po")["values"]
    samples = load_config("smoke", {"algorithm": "a_star_po"}).values.samples
    assert values == pytest.approx(samples * 256 * each, rel=0.01)


def test_a_plan_comes_as_far_as_the_refusal_of_a_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no network")
    known = predict(load_config("smoke", OCR))
    assert known
    for path in (broken, tmp_path / "absent.onnx"):
        found = predict(load_config("smoke", {**OCR, "reward.ocr.detector": str(path)}))
        assert found
        assert found.hours == pytest.approx(known.hours)


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
