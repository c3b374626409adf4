"""The page at ``/``: one file, nothing from elsewhere, and a policy that lets the browser run its own script alone."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

PAGE = (Path(__file__).parent / "page.html").read_text("utf-8")


def _digest(tag: str) -> str:
    """What a Content-Security-Policy calls the text between the page's tags of this name."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; connect-src 'self'; script-src {_digest('script')}; style-src {_digest('style')};"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
