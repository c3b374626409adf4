"""Chromium without a window, for tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def document(url: str, profile: Path, seconds: int = 30) -> str:
    """The document that Chromium has made of a page when `seconds` of the page's own time have passed."""
    quiet = ("gpu", "dev-shm-usage", "quic", "background-networking", "component-update", "sync")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{one}" for one in quiet)]
    command += [f"--user-data-dir={profile}", "--window-size=1600,1400", "--dump-dom"]
    command += [f"--virtual-time-budget={1000 * seconds}"]
    return subprocess.run([*command, url], capture_output=True, text=True, timeout=240, check=True).stdout
