"""How well PP-OCR reads clean and degraded text: the instrument of the kind `ocr`, measured on texts.

python -m pipeline.ocr_error [--texts FILE] [--n 100] [--seed 0] [--as KEY=VALUE ...]

Each `--as` is one more way to draw the texts, in the keys of `reward.ocr`: ``--as size=16 blur=1 noise=60``. The
first way is the clean one, all defaults. Errors of the others are compared with its errors text by text.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.config.messages import validate
from pipeline.config.ocr import OcrConfig
from pipeline.data.reviews import generate
from pipeline.errors import UserError
from pipeline.intervals import Interval, student
from pipeline.rewards.ocr import Legibility, OcrReward
from pipeline.rewards.reading import Reader, paddle_reader

DEGRADED = ("size=16", "blur=1", "noise=60", "rotation=3")
"""What is measured beside clean text where nothing else is asked for."""


@dataclass(frozen=True)
class Row:
    """One way to draw the texts."""

    name: str
    found: Sequence[Legibility]
    seconds: float

    def mean(self, value: Callable[[Legibility], float]) -> Interval:
        """Mean over texts, and its 95 % interval by Student's t."""
        return student([value(one) for one in self.found])


def measure(texts: Sequence[str], ways: dict[str, OcrConfig], reader: Callable[[OcrConfig], Reader]) -> list[Row]:
    """Read all texts in each way."""
    rows = []
    for name, cfg in ways.items():
        reward = OcrReward("--as", cfg, reader(cfg))
        began = time.perf_counter()
        found = reward.legibility(texts)
        rows.append(Row(name, found, time.perf_counter() - began))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Markdown: n, the means with their 95 % intervals over texts, and images per second."""
    clean = [one.error for one in rows[0].found]
    lines = [
        "| drawn with | n | character error rate | error minus that of clean text | confidence | score | images/s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        paired = student([one.error - first for one, first in zip(row.found, clean, strict=True)])
        cells = [
            row.name,
            str(len(row.found)),
            _cell(row.mean(lambda one: one.error)),
            "" if row is rows[0] else _cell(paired),
            _cell(row.mean(lambda one: one.confidence)),
            _cell(row.mean(lambda one: one.score)),
            f"{len(row.found) / max(row.seconds, 1e-9):.3g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def way(settings: Sequence[str]) -> OcrConfig:
    """Settings as ``key=value``, values in YAML. Raises `UserError`."""
    pairs = dict(setting.partition("=")[::2] for setting in settings)
    return validate(OcrConfig, {key: yaml.safe_load(value) for key, value in pairs.items()}, "--as")


def read_texts(path: Path | None, n: int, seed: int) -> list[str]:
    """The first `n` different texts of a file, one a line, or built-in reviews. Raises `UserError`."""
    if path is None:
        return [review.text for review in generate(n, seed)]
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--texts {path}: cannot be read ({error}); give a text file in UTF-8, one text a line"
        ) from None
    texts = list(dict.fromkeys(filter(str.strip, lines)))[:n]
    if len(texts) < 2:
        raise UserError(f"--texts {path}: has {len(texts)} different lines; an interval needs at least 2")
    return texts


def main() -> None:
    """Read the arguments, measure, print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.ocr_error", description="The OCR error of clean and of degraded text."
    )
    parser.add_argument("--texts", type=Path, help="a file with one text a line; default: built-in reviews")
    parser.add_argument("--n", type=int, default=100, help="texts, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the built-in reviews")
    parser.add_argument("--as", dest="ways", nargs="+", action="append", metavar="KEY=VALUE", help="of reward.ocr")
    given = parser.parse_args()
    try:
        ways = {"clean (defaults)": OcrConfig()}
        ways |= {" ".join(settings): way(settings) for settings in given.ways or [DEGRADED]}
        texts = read_texts(given.texts, given.n, given.seed)
        print(table(measure(texts, ways, lambda cfg: paddle_reader("--as", cfg))))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
