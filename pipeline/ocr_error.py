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
from typing import Any

import yaml

from pipeline.config.messages import validate
from pipeline.data.reviews import generate
from pipeline.errors import UserError
from pipeline.intervals import Interval, student, wilson
from pipeline.rewards.ocr import Legibility, OcrReward
from pipeline.rewards.ocr_settings import OcrSettings
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
        """Mean over texts of a value in [0, 1], and its 95 % interval, `bounded`."""
        return bounded([value(one) for one in self.found], 0.0, 1.0)


def bounded(values: Sequence[float], low: float, high: float) -> Interval:
    """Mean of independent values in [low, high], and its 95 % interval by Student's t, within these ends.

    Where all values are one value v, Student's has no width, however few they are. Then it is [v - w (v - low),
    v + w (high - v)], where w is the upper end of Wilson's interval for the share of texts with another value.
    """
    mean, below, above = student(values)
    if len(set(values)) == 1:
        other = wilson(0.0, len(values))[1]
        below, above = mean - other * (mean - low), mean + other * (high - mean)
    return mean, max(low, below), min(high, above)


def measure(texts: Sequence[str], ways: dict[str, OcrSettings], reader: Callable[[OcrSettings], Reader]) -> list[Row]:
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
        paired = bounded([one.error - first for one, first in zip(row.found, clean, strict=True)], -1.0, 1.0)
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


def way(settings: Sequence[str]) -> OcrSettings:
    """Settings as ``key=value``, values in YAML. Raises `UserError`."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key in found:
            why = f"{key} is set twice; leave one out" if equals else "write it as key=value, for example size=16"
            raise UserError(f"--as {setting}: {why}")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--as {setting}: '{value}' is not a YAML value") from None
    return validate(OcrSettings, found, "--as")


def read_texts(path: Path | None, n: int, seed: int) -> list[str]:
    """The first `n` different texts of a file, one a line, or built-in reviews. Raises `UserError`."""
    if n < 2:
        raise UserError(f"--n {n}: an interval needs at least 2 texts")
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
    parser.add_argument("--n", type=int, default=100, help="texts, at most; 2 or more")
    parser.add_argument("--seed", type=int, default=0, help="of the built-in reviews")
    parser.add_argument("--as", dest="ways", nargs="+", action="append", metavar="KEY=VALUE", help="of reward.ocr")
    given = parser.parse_args()
    try:
        ways = {"clean (defaults)": OcrSettings()}
        ways |= {" ".join(settings): way(settings) for settings in given.ways or [DEGRADED]}
        texts = read_texts(given.texts, given.n, given.seed)
        print(table(measure(texts, ways, lambda cfg: paddle_reader("--as", cfg))))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
