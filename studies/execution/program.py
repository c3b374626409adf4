"""Which program this is: all hands of a study must run the same one."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

HOME = Path(__file__).parents[2]
"""Where the packages of this program lie."""
PACKAGES = ("pipeline", "studies/execution")
"""What computes a trial, and what carries it."""


@lru_cache(maxsize=1)
def code_digest() -> str:
    """SHA-256 of the program's source files: paths below `HOME`, and contents."""
    files = sorted(path for package in PACKAGES for path in (HOME / package).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(HOME).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def python_path() -> str:
    """``PYTHONPATH`` for a hand on another machine: this program first, then what the variable holds here."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(HOME), *filter(None, given)]))
