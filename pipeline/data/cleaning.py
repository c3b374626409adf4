"""One form for all texts: plain, on one line, without what went wrong on the way to us."""

from __future__ import annotations

import html
import re

_BREAK, _SPACE = re.compile(r"</?(?:br|p|hr)\s*/?>", re.IGNORECASE), re.compile(r"\s+")
_STRAY: dict[int, str | None] = {
    **{code: None for code in (*range(0x20), 0x7F, 0xFEFF, *range(0xD800, 0xE000)) if not chr(code).isspace()},
    # Dashes and quotes of Windows-1252 that were read as Latin-1 on the way; hundreds of IMDb's reviews have them.
    **{code: bytes([code]).decode("cp1252", "ignore") or None for code in range(0x80, 0xA0)},
}


def clean(text: str) -> str:
    """Plain text on one line: HTML breaks and entities resolved, stray control characters repaired, white space single.

    >>> clean("Good.<br /><br />Very &amp; truly\\tgood ")
    'Good. Very & truly good'
    >>> clean("bad \\x96 it\\x92s\\x00 dull")
    'bad – it’s dull'
    """
    return _SPACE.sub(" ", html.unescape(_BREAK.sub(" ", text)).translate(_STRAY)).strip()
