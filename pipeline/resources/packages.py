"""Packages that only some settings need; looked up without importing any."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline.errors import UserError

EXTRAS = {"ocr": ("rapidocr", "onnxruntime", "PIL"), "quantize": ("bitsandbytes",)}
"""Packages of each extra, as imported."""


def check_extra(setting: str, extra: str) -> None:
    """Raise `UserError` where packages of an extra are missing, which a setting such as ``reward.kind = 'ocr'``
    needs."""
    if missing := [package for package in EXTRAS[extra] if find_spec(package) is None]:
        raise UserError(
            f"{setting}: not installed: {', '.join(missing)}; install the extra (pip install -e '.[{extra}]'), or use"
            " another value"
        )
