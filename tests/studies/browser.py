"""Chromium without a window, for tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def document(url: str, profile: Path) -> str:
    """The document that Chromium has made of a page."""
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{one}" for one in quiet)]
    command += [f"--user-data-dir={profile}", "--window-size=1600,1400", "--virtual-time-budget=30000", "--dump-dom"]
    return subprocess.run([*command, url], capture_output=True, text=True, timeout=240, check=True).stdout
