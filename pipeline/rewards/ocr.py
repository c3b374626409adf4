"""Legibility as a reward: a completion is drawn as an image, PP-OCR reads it (Cui 2025, arXiv 2507.05595; by rapidocr
and onnxruntime), and what it reads is compared with what was written.

    score = confidence x (1 - error),   error = min(1, (d(written, read) + cut) / (len(written) + cut))

d is Levenshtein's distance in characters, `cut` the number of characters that were not drawn, and the confidence is the
mean over all detected boxes: the detector is a DB network (Liao 2020, arXiv 1911.08947), which gives each pixel a
probability to be text, and the confidence of a box is the mean of these in it. Boxes below 0.5 are not read. The score
is in [0, 1]. It is 0 for a text without a visible character and where nothing is detected. The prompt is not drawn.

The image depends on the text and the settings alone. Angle and noise come from a generator whose seed is a hash of the
text, so that the same text has the same image in every batch, process and trial.
"""

from __future__ import annotations

import hashlib
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.resources.machine import check_extra
from pipeline.rewards.base import Completions, as_scores
from pipeline.rewards.kinds import OcrSettings
from pipeline.wording import in_words

PAPER, INK = 255, 0
COLUMNS, CHARACTERS = 48, 480
"""Most characters of a line, and most that are drawn; each character beyond them counts as one error."""
GRID = 32
"""A detector takes images whose sides are multiples of this [pixels]; others it would stretch."""
UNPRINTABLE = "\ufffd"
"""Stands for a character that cannot be printed. No recogniser of PP-OCR has it, so it is always an error."""


class Written(NamedTuple):
    """The drawn part of a text, and the number of characters that are not drawn."""

    lines: tuple[str, ...]
    cut: int


def plain(text: str) -> str:
    """A text in the form in which it is drawn and compared.

    Unicode's NFKC; each run of white space is one space, and none is at the ends; each character of the Unicode
    categories C (control, format, surrogate, private, unassigned) is `UNPRINTABLE`.

    >>> plain(" Ｇｏｏｄ,\\n\\tnot bad. ")
    'Good, not bad.'
    """
    joined = " ".join(unicodedata.normalize("NFKC", text).split())
    return "".join(UNPRINTABLE if unicodedata.category(one).startswith("C") else one for one in joined)


def written(text: str, columns: int = COLUMNS, characters: int = CHARACTERS) -> Written:
    """The first `characters` characters of the plain text, wrapped at spaces to lines of at most `columns`; a longer
    word is broken.

    >>> written("a good film", 6, 8)
    Written(lines=('a good', 'f'), cut=3)
    """
    whole = plain(text)
    drawn = whole[:characters].rstrip()
    lines = textwrap.wrap(drawn, columns, break_on_hyphens=False)
    return Written(tuple(lines), len(whole) - len(drawn))


def render(text: Written, cfg: OcrSettings) -> NDArray[np.uint8]:
    """(H, W) grey levels: black on white, turned, blurred, with noise, in this order; multiples of `GRID`."""
    from PIL import Image, ImageDraw, ImageFilter

    seed = hashlib.sha256(f"0\0{' '.join(text.lines)}".encode()).digest()[:16]
    generator = np.random.default_rng(int.from_bytes(seed, "big"))
    angle = float(generator.uniform(-cfg.rotation, cfg.rotation))
    font = _font(cfg.size)
    height = sum(font.getmetrics())
    width = max(round(font.getlength(line)) for line in text.lines)
    margin = cfg.size // 2
    page = Image.new("L", (width + 2 * margin, height * len(text.lines) + 2 * margin), PAPER)
    pen = ImageDraw.Draw(page)
    for row, line in enumerate(text.lines):
        pen.text((margin, margin + row * height), line, fill=INK, font=font)
    if angle:
        page = page.rotate(angle, resample=Image.Resampling.BICUBIC, expand=True, fillcolor=PAPER)
    wide, high = (-(-side // GRID) * GRID for side in page.size)
    canvas = Image.new("L", (wide, high), PAPER)
    canvas.paste(page, ((canvas.width - page.width) // 2, (canvas.height - page.height) // 2))
    if cfg.blur:
        canvas = canvas.filter(ImageFilter.GaussianBlur(cfg.blur))
    grey = np.asarray(canvas)
    if not cfg.noise:
        return grey
    noisy = grey + generator.normal(0.0, cfg.noise, grey.shape)
    return np.rint(noisy).clip(INK, PAPER).astype(np.uint8)


@lru_cache(maxsize=16)
def _font(size: int) -> Any:
    """DejaVu Sans (Latin, Greek, Cyrillic and more), found without importing matplotlib."""
    from PIL import ImageFont

    places = getattr(find_spec("matplotlib"), "submodule_search_locations", None) or [""]
    path = Path(places[0]) / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    # The basic layout is part of every build of Pillow; the other one is not.
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


class Reading(NamedTuple):
    """Text of all boxes of an image in reading order, a space between two, and the mean of the detector's confidence
    over them; 0 where there are none."""

    text: str
    confidence: float


class PaddleReader:
    """PP-OCR on one CPU thread an image, so that the number of threads, which may share it, changes no digit."""

    def __init__(self, detector: Any, recogniser: Any) -> None:
        self._detector, self._recogniser = detector, recogniser

    def __call__(self, image: NDArray[np.uint8]) -> Reading:
        colour = np.repeat(image[:, :, None], 3, axis=2)
        found = self._detector(colour)
        if found.boxes is None:
            return Reading("", 0.0)
        boxes = np.asarray(found.boxes, dtype=np.float64)[reading_order(found.boxes)]
        crops = self._detector.crop_text_regions(colour, boxes.astype(np.float32))
        # One at a time: in a batch, a crop is padded to the width of the widest.
        texts = [text for crop in crops for text in self._recogniser(crop).txts or ()]
        return Reading(" ".join(filter(None, texts)), float(np.mean(found.scores)))


def reading_order(boxes: Any) -> list[int]:
    """Top to bottom, left to right, of boxes (N, 4, 2) of corners from the upper left one clockwise [pixels].

    A box begins a line where its centre is half its height or more below that of the line's highest box.
    """
    corners = np.asarray(boxes, dtype=np.float64)
    centres, heights = corners.mean(axis=1), np.linalg.norm(corners[:, 3] - corners[:, 0], axis=1)
    lines: list[list[int]] = []
    for box in np.argsort(centres[:, 1], kind="stable").tolist():
        if lines and centres[box, 1] - centres[lines[-1][0], 1] < heights[box] / 2:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda one: (centres[one, 0], one))]


def paddle_reader(section: str) -> PaddleReader:
    """Load the networks that come with rapidocr. Raises `UserError` where they are not installed or do not load."""
    check_extra(f"{section}.kind = 'ocr'", "ocr")
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    try:
        engines = [RapidOCR(params=_settings(other)) for other in ("rec", "det")]
        for engine in engines:
            engine(np.full((2 * GRID, 10 * GRID, 3), PAPER, np.uint8))  # loads its network
    except Exception as error:  # onnxruntime and rapidocr raise classes of their own
        raise UserError(f"{section}.kind = 'ocr': PP-OCR could not be loaded ({in_words(error)})") from None
    return PaddleReader(*engines)


def _settings(other: str) -> dict[str, Any]:
    """Return settings of an engine that has one network, not the `other`, and leaves the image as it is."""
    return {
        "Global.log_level": "critical",
        "Global.use_cls": False,
        f"Global.use_{other}": False,
        "Global.use_preprocess_img": False,
        "Global.use_vertical_padding": False,
        "Det.limit_side_len": GRID,
        **{f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")},
    }


class OcrReward:
    """The score of each completion by itself, on the CPU by as many threads as torch has; the work is not counted."""

    networks: Sequence[Any] = ()

    def __init__(self, cfg: OcrSettings, reader: Callable[[NDArray[np.uint8]], Reading]) -> None:
        self._cfg, self._reader = cfg, reader
        self._known: dict[str, float] = {}

    def __call__(self, completions: Completions) -> Tensor:
        drawn = {text: written(text) for text in dict.fromkeys(completions.texts) if text not in self._known}
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            readings = pool.map(self._reader, [render(one, self._cfg) for one in drawn.values() if one.lines])
            for text, one in drawn.items():
                if not one.lines:
                    self._known[text] = 0.0
                    continue
                read, confidence = next(readings)
                self._known[text] = confidence * (1.0 - character_error_rate(" ".join(one.lines), plain(read), one.cut))
        return as_scores([self._known[text] for text in completions.texts])


def character_error_rate(correct: str, read: str, cut: int = 0) -> float:
    """``min(1, (d(correct, read) + cut) / (len(correct) + cut))``; `cut` characters more are correct and were not read.

    `correct` must have a character. Source: Levenshtein 1966; the rate as in ISRI's evaluation of OCR (Rice 1995).

    >>> character_error_rate("film", "fi1m"), character_error_rate("film", "film", 4)
    (0.25, 0.5)
    """
    above = list(range(len(read) + 1))
    for row, one in enumerate(correct, start=1):
        here = [row]
        for column, other in enumerate(read, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (one != other)))
        above = here
    return min(1.0, (above[-1] + cut) / (len(correct) + cut))


def load(section: str, cfg: OcrSettings, device: torch.device, room: Room) -> OcrReward:
    """The networks run on the CPU, whatever the device. Raises `UserError` where they cannot be had."""
    return OcrReward(cfg, paddle_reader(section))
