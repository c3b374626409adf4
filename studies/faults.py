"""Puts an unexpected exception into one line: a full disk as such, and everything else with a log that holds the
traceback."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import Fault
from pipeline.wording import in_words

_FULL = re.compile(r"no space left on device|database or disk is full|disk quota exceeded", re.IGNORECASE)
"""Messages of the C library, the Rust libraries (safetensors, tokenizers), SQLite and pyarrow."""


class DiskFull(Fault):
    """No space is left where a file had to be written."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether a full disk, or a used-up quota, stands anywhere in the chain of an exception."""
    return _full(error) is not None


def _full(error: BaseException) -> BaseException | None:
    """The link of the chain that names it: `torch.save` and SQLAlchemy raise an exception of their own after it."""
    chain = [error]
    for link in chain:  # which grows
        if getattr(link, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(str(link)):
            return link
        chain += [one for one in (link.__cause__, link.__context__) if one is not None and one not in chain]
    return None


def disk_full(error: BaseException) -> DiskFull:
    """State the cause, which names the file where the system does, what was kept, and what to do."""
    return DiskFull(
        f"a disk is full or a quota is used up ({in_words(_full(error) or error)}); finished trials, finished stages"
        " and checkpoints are kept. Free some space and run the same command again: it continues"
    )


def explained(error: BaseException, root: Path) -> Fault:
    """One line for an unexpected exception; its traceback goes to a log file under the output root."""
    if is_disk_full(error):
        return disk_full(error)
    line, folder = in_words(error), root / "log"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # For its owner alone, and new: at a name that can be guessed, a link to a file of ours could lie.
        handle, path = tempfile.mkstemp(".txt", f"fault-{datetime.now(UTC):%Y%m%d-%H%M%S}-", folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write("".join(traceback.format_exception(error)))
        return Fault(f"{line}; details: {path}")
    return Fault(f"{line}; set ABLATE_TRACEBACK=1 to see where")
