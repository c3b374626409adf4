"""Puts an unexpected exception into one line: a full disk as such, and everything else with a log that holds the
traceback."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import Fault

_FULL = re.compile(r"no space left on device|database or disk is full|disk quota exceeded", re.IGNORECASE)
"""Messages of the C library, the Rust libraries (safetensors, tokenizers), SQLite and pyarrow."""

AMPLE = 64 * 2**20
"""Bytes; a disk with more free than this is not the one that is full, or its owner's quota is."""


class DiskFull(Fault):
    """No space is left where a file had to be written."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether a full disk, or a used-up quota, stands anywhere in the chain of an exception.

    `torch.save` and SQLAlchemy raise an exception of their own after it, which names another cause.
    """
    return any(
        getattr(link, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(str(link)) for link in chain(error)
    )


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was raised from or while handling."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        link = left.pop(0)
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            left += [link.__cause__, link.__context__]


def disk_full(error: BaseException, root: Path) -> DiskFull:
    """Name the full disk, what was kept, and what to do. `root` is the output root, where the exception names no
    file."""
    named = [
        Path(name) for link in chain(error) if isinstance(name := getattr(link, "filename", None), str | os.PathLike)
    ]
    places = [existing(path) for path in named[:1] or (root, Path(tempfile.gettempdir()))]
    place = min(places, key=lambda path: shutil.disk_usage(path).free)
    free = shutil.disk_usage(place).free
    where = f"a disk is full or a quota is used up ({in_words(error)})"
    if free <= AMPLE:
        where = f"the disk of {place} is full ({free / 2**20:.3g} MiB free)"
    return DiskFull(
        f"{where}; finished trials, finished stages and checkpoints are kept. Free some space and run the same command"
        " again: it continues"
    )


def explained(error: BaseException, root: Path) -> Fault:
    """One line for an unexpected exception; its traceback goes to a log file under the output root."""
    if is_disk_full(error):
        return disk_full(error, root)
    line = in_words(error)
    name = f"fault-{datetime.now(UTC):%Y%m%d-%H%M%S}-"
    for folder in (root / "log", None):
        with suppress(OSError):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            # For its owner alone, and new: at a name that can be guessed, a link to a file of ours could lie.
            handle, path = tempfile.mkstemp(".txt", name if folder else f"ablate-{name}", folder)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
                log.write("".join(traceback.format_exception(error)))
            return Fault(f"{line}; details: {path}")
    return Fault(f"{line}; set ABLATE_TRACEBACK=1 to see where")


def in_words(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def existing(path: Path) -> Path:
    """The nearest folder above a path, or the path itself, that is there."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))
