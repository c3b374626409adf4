"""A figure's SVG file as an element of a page."""

from __future__ import annotations

import re
from pathlib import Path


def inline_svg(path: Path, prefix: str) -> str:
    """The SVG element for a page: no XML head or metadata, and identifiers that cannot clash with another figure's."""
    text = path.read_text("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<title>.*?</title>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{prefix}-\2"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    box = re.search(r'viewBox="[^"]+"', text)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f" {box.group() if box else ''}"
    )
    return head + ' aria-hidden="true" focusable="false">' + text[text.index(">") + 1 :]
