from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tinynets
import torch
from numpy.typing import NDArray

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.resources import machine
from pipeline.rewards.base import Completions
from pipeline.rewards.kinds import OcrSettings
from pipeline.rewards.ocr import (
    UNPRINTABLE,
    OcrReward,
    PaddleReader,
    Reading,
    Written,
    character_error_rate,
    paddle_reader,
    plain,
    reading_order,
    render,
    written,
)
from pipeline.stages.sources import check_sources

DEGRADED = OcrSettings(blur=1.0, noise=20.0, rotation=2.0)
REVIEW = "The acting was absolutely superb, and the plot was dull."


def completions(texts: Sequence[str]) -> Completions:
    return tinynets.completions(*(("prompt", text) for text in texts))


def says(text: str, confidence: float = 1.0) -> tuple[OcrReward, Mock]:
    """Return a reward whose reader reads the same of every image, and that reader."""
    reader = Mock(return_value=Reading(text, confidence))
    return OcrReward(OcrSettings(), reader), reader


ERRORS = (
    ("film", 0, 0), ("fi1m", 0, 1 / 4), ("flm", 0, 1 / 4), ("fiilm", 0, 1 / 4), ("mlif", 0, 1),
    ("something else", 0, 1), ("film", 4, 4 / 8), ("fi1m", 6, 7 / 10),
)  # fmt: skip


@pytest.mark.parametrize(("read", "cut", "error"), ERRORS)
def test_error_rates_by_hand(read: str, cut: int, error: float) -> None:
    assert character_error_rate("film", read, cut) == pytest.approx(error)


PLAIN = {
    " a\r\n\tb   c ": "a b c", "Ｇｏｏｄ ﬁlm，": "Good film,", "e\u0301": "é", " \n\x1f\u3000": "",
    "a\x07b\u200bc\ud800": f"a{UNPRINTABLE}b{UNPRINTABLE}c{UNPRINTABLE}",
}  # fmt: skip
WRITTEN = [
    ("a good film", 8, 100, Written(("a good", "film"), 0)),
    ("incomprehensible", 8, 100, Written(("incompre", "hensible"), 0)),
    ("well-made", 8, 100, Written(("well-mad", "e"), 0)),  # no break after a hyphen, which would add a space
    ("a good film", 48, 8, Written(("a good f",), 3)),
    ("a good film", 48, 7, Written(("a good",), 5)),  # no space at the end
]


def test_a_text_is_made_plain_wrapped_and_cut() -> None:
    assert {text: plain(text) for text in PLAIN} == PLAIN
    assert [written(*given) for *given, _ in WRITTEN] == [drawn for *_, drawn in WRITTEN]


def test_texts_that_are_empty_long_or_unprintable_have_a_score() -> None:
    reward, reader = says("film")
    assert reward(completions(["", " \n ", "\x1f"])).tolist() == [0.0, 0.0, 0.0]
    assert not reader.called, "nothing is drawn of them"
    assert says("fi1m", 0.8)[0](completions([" film"])).tolist() == pytest.approx([0.8 * 0.75])
    for read, texts, score in (
        ("word " * 96, ["word " * 384], 479 / 1919),  # three quarters are not drawn
        ("aXb", ["a\x07b"], 2 / 3),  # a control character is an error
        ("a b", ["a\nb", "a b", "\na  b "], 1.0),
        ("!", ["中文 🙂", "\ud800", "x" * 5000, "\u202eabc", "a" * 47 + " 中" * 300], 0.0),
    ):
        assert says(read)[0](completions(texts)).tolist() == pytest.approx([score] * len(texts))


def test_an_image_depends_on_the_text_and_the_settings_alone() -> None:
    first, _, again = (render(written(text), DEGRADED) for text in (REVIEW, "another", REVIEW))
    assert np.array_equal(again, first)
    noisy = OcrSettings(noise=20.0)
    drawn = [written(text) for text in ("one", "eno")]
    noise = [render(one, noisy).astype(int) - render(one, OcrSettings()) for one in drawn]
    assert not np.array_equal(noise[0][:4], noise[1][:4]), "each text has noise of its own"


def test_a_text_is_read_once() -> None:
    reward, reader = says("film")
    reward(completions(["film", "film", "movie"]))
    assert reward(completions(["movie", "film"]))[1] == 1.0
    assert reader.call_count == 2


def box(x: float, y: float, width: float = 50, height: float = 20, slope: float = 0.0) -> list[list[float]]:
    return [[x, y], [x + width, y + slope * width], [x + width, y + slope * width + height], [x, y + height]]


def test_reading_order_is_by_line_and_then_from_the_left() -> None:
    assert reading_order([box(100, 12), box(0, 40), box(0, 10), box(90, 38)]) == [2, 0, 1, 3]
    assert reading_order([box(60, 0, slope=-0.1), box(0, 5, slope=-0.1)]) == [1, 0]
    assert reading_order([box(0, 11), box(60, 0)]) == [1, 0], "more than half a line further down"
    assert reading_order([box(0, 9), box(60, 0)]) == [0, 1]


class Finds:
    """The engines of rapidocr, made up: boxes in an order of their own, and what stands in each."""

    def __init__(self, boxes: list[Any] | None, scores: list[float]) -> None:
        self.boxes, self.scores = boxes, scores

    def __call__(self, image: NDArray[np.uint8]) -> Any:
        return SimpleNamespace(boxes=None if self.boxes is None else np.array(self.boxes, np.int32), scores=self.scores)

    def crop_text_regions(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> list[NDArray[np.uint8]]:
        return [np.full((20, 200, 3), int(one[0, 0]), np.uint8) for one in boxes]


def recognise(crop: NDArray[np.uint8]) -> Any:
    return SimpleNamespace(txts={0: ("left",), 100: ("right",)}.get(int(crop[0, 0, 0])))


def test_boxes_are_joined_in_reading_order_and_weigh_the_same() -> None:
    found = PaddleReader(Finds([box(100, 0), box(0, 2)], [0.9, 0.6]), recognise)(np.zeros((64, 320), np.uint8))
    assert (found.text, found.confidence) == ("left right", 0.75)
    nothing = PaddleReader(Finds(None, []), recognise)(np.zeros((64, 320), np.uint8))
    assert nothing == Reading("", 0.0)
    unread = PaddleReader(Finds([box(0, 0), box(50, 60)], [0.5, 0.7]), recognise)(np.zeros((64, 320), np.uint8))
    assert (unread.text, unread.confidence) == ("left", 0.6), "a box without text lowers no error, and has a confidence"


def test_without_the_extra_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "rapidocr" else name)
    said = r"^reward\.kind = 'ocr': not installed: rapidocr; install the extra \(pip install -e '\.\[ocr\]'\), or use"
    for ask in (lambda: check_sources(load_config("smoke", {"reward.kind": "ocr"}), ["reward"]),
                lambda: paddle_reader("reward")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            ask()
    check_sources(load_config("smoke", {"reward.kind": "ocr"}), ["sft"])


@pytest.mark.skipif(not all(map(find_spec, machine.EXTRAS["ocr"])), reason="rapidocr is not installed (the extra ocr)")
def test_paddle_reads_clean_text_better_than_bad_and_a_text_the_same_in_every_batch() -> None:
    paddle = paddle_reader("reward")
    texts = [REVIEW, "Short.", "A text that is somewhat longer than the others, and so has two lines of its own."]
    arms = [OcrSettings(), OcrSettings(blur=2.0, noise=60.0, rotation=5.0), DEGRADED]
    clean, bad, together = (OcrReward(cfg, paddle)(completions(texts)) for cfg in arms)
    assert all(0.5 < score < 1.0 for score in clean.tolist()), "read without an error"
    assert bool((bad < clean - 0.1).all())
    torch.set_num_threads(2)
    try:
        apart = [OcrReward(DEGRADED, paddle)(completions([text])) for text in texts]
        threaded = OcrReward(DEGRADED, paddle)(completions(texts[::-1])).flip(0)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(together, torch.cat(apart))
    assert torch.equal(together, threaded)
