"""A text as an image: what is drawn of it, its lines, and the picture, degraded as it is asked for.

The image depends on the text and the settings alone. Angle and noise come from a generator whose seed is a hash of the
text, so that the same text has the same image in every batch, process and trial.
"""

from __future__ import annotations

import hashlib
import textwrap
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.rewards.ocr_settings import OcrSettings

PAPER, INK = 255, 0
COLUMNS, CHARACTERS = 48, 480
"""Most characters of a line, and most that are drawn; each character beyond them counts as one error."""
GRID = 32
"""A detector takes images whose sides are multiples of this [pixels]; others it would stretch."""
UNPRINTABLE = "\ufffd"
"""Stands for a character that cannot be printed. No recogniser of PP-OCR knows it, so it is always an error."""


@dataclass(frozen=True)
class Written:
    """What is drawn of a text."""

    lines: tuple[str, ...]
    cut: int
    """Characters that are not drawn."""

    @property
    def text(self) -> str:
        """The lines with a space between them."""
        return " ".join(self.lines)


def plain(text: str) -> str:
    """A text in the form in which it is drawn and compared.

    Unicode's NFKC; each run of white space, line breaks too, is one space, and none is at the ends; each character of
    the Unicode categories C (control, format, surrogate, private, unassigned) is `UNPRINTABLE`.

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
    """(H, W) grey levels: black on white, turned, blurred, with noise, in this order. H and W are multiples of
    `GRID`."""
    from PIL import Image, ImageDraw, ImageFilter

    generator = np.random.default_rng(_seed(text.text))
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


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"0\0{text}".encode()).digest()[:16], "big")


@lru_cache(maxsize=16)
def _font(size: int) -> Any:
    """DejaVu Sans (Latin, Greek, Cyrillic and more), found without importing matplotlib."""
    from PIL import ImageFont

    places = getattr(find_spec("matplotlib"), "submodule_search_locations", None) or [""]
    path = Path(places[0]) / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    # The basic layout is part of every build of Pillow; the other one is not.
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
