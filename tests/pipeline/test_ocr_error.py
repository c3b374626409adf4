"""The instrument that measures how well clean and degraded text is read, with a reader that is made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import UserError
from pipeline.ocr_error import bounded, measure, read_texts, table, way
from pipeline.rewards.ocr_settings import OcrSettings
from pipeline.rewards.reading import Reading

TEXTS = ["film", "plot", "cast", "good"]


def reads_film(cfg: OcrSettings) -> object:
    """Reads clean text as `film`, and degraded text as nothing."""

    def read(image: NDArray[np.uint8]) -> Reading:
        return Reading("film" if not cfg.noise else "", 0.5)

    return read


def test_the_table_by_hand() -> None:
    rows = measure(TEXTS, {"clean": OcrSettings(), "noisy": OcrSettings(noise=9)}, reads_film)  # type: ignore[arg-type]
    assert [one.error for one in rows[0].found] == [0.0, 1.0, 1.0, 1.0]
    assert [one.error for one in rows[1].found] == [1.0] * 4
    # Student's t with 3 degrees of freedom: 0.75 plus and minus 3.182 x 0.5 / 2
    # which is 0.75 plus and minus 0.796: more than an error rate can be.
    assert rows[0].mean(lambda one: one.error) == (0.75, 0.0, 1.0)
    mean, low, high = rows[0].mean(lambda one: one.error / 10)
    assert (mean, low, high) == pytest.approx((0.075, 0.0, 0.1546), abs=1e-4)
    clean, noisy = table(rows).splitlines()[2:]
    assert clean.startswith("| clean | 4 | 0.750 [0.000, 1.000] |  | 0.500 [0.255, 0.745] | 0.125 [0.000, 0.523] | ")
    assert noisy.startswith(
        "| noisy | 4 | 1.000 [0.510, 1.000] | 0.250 [-0.546, 1.000] | 0.500 [0.255, 0.745] | 0.000 [0.000, 0.490] | "
    )


def test_no_error_on_a_few_texts_is_no_proof_that_there_is_none() -> None:
    """Nobody has seen an error on 10 texts: up to 27.8 % of texts may have one (Wilson 1927: z² / (n + z²))."""
    assert bounded([0.0] * 10, 0.0, 1.0) == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)
    assert bounded([0.0] * 10, -1.0, 1.0) == pytest.approx((0.0, -0.2775, 0.2775), abs=1e-4)
    assert bounded([0.0] * 1000, 0.0, 1.0)[2] < 0.004
    assert bounded([1.0] * 10, 0.0, 1.0) == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)
    assert bounded([0.5] * 10, 0.0, 1.0) == pytest.approx((0.5, 0.5 - 0.1387, 0.5 + 0.1387), abs=1e-4)


def test_settings_are_those_of_the_reward_and_wrong_ones_refused() -> None:
    assert way(["blur=1", "noise=40"]) == OcrSettings(blur=1.0, noise=40.0)
    with pytest.raises(UserError, match=r"^--as: unknown key 'blurr'; did you mean 'blur'\?$"):
        way(["blurr=1"])
    with pytest.raises(UserError, match=r"^--as: blur = -1: must be"):
        way(["blur=-1"])
    with pytest.raises(UserError, match=r"^--as size: write it as key=value, for example size=16$"):
        way(["size"])
    with pytest.raises(UserError, match=r"^--as size=20: size is set twice; leave one out$"):
        way(["size=16", "size=20"])
    with pytest.raises(UserError, match=r"^--as font=\[: '\[' is not a YAML value$"):
        way(["font=["])


def test_texts_come_from_a_file_or_are_built_in(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\ntwo\none\nthree\n")
    assert read_texts(path, 2, 0) == ["one", "two"]
    assert len(set(read_texts(None, 5, 1))) == 5
    for few in (1, 0, -3):
        with pytest.raises(UserError, match=rf"^--n {few}: an interval needs at least 2 texts$"):
            read_texts(None, few, 0)
    path.write_text("one\none\n")
    with pytest.raises(UserError, match=r"has 1 different lines; an interval needs at least 2"):
        read_texts(path, 9, 0)
    with pytest.raises(UserError, match=r"cannot be read .*; give a text file in UTF-8"):
        read_texts(tmp_path / "absent", 9, 0)
