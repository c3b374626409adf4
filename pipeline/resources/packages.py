"""Packages that only some settings need; looked up without importing any."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline.errors import UserError

OCR = ("rapidocr", "onnxruntime", "PIL")
"""Packages that the kind `ocr` needs, as imported."""


def check_quantization(key: str, how: str) -> None:
    """Raise `UserError` where the setting `key` selects weights in few bits and bitsandbytes is not installed."""
    if how != "none" and find_spec("bitsandbytes") is None:
        raise UserError(
            f"{key} = '{how}': the package bitsandbytes is not installed; install it (pip install -e '.[quantize]'), or"
            " use none"
        )


def check_ocr(key: str) -> None:
    """Raise `UserError` where the setting `key` selects the kind `ocr` and what it needs is not installed."""
    missing = [package for package in OCR if find_spec(package) is None]
    if missing:
        raise UserError(
            f"{key} = 'ocr': not installed: {', '.join(missing)}; install the extra (pip install -e '.[ocr]'), or use"
            " another kind"
        )
