"""A trial that has to leave its machine within minutes, such as at a scheduler's time limit: it finishes the update at
hand, writes a checkpoint and stops.

A file requests it, so that the request reaches all processes of the trial: `LEAVE` is its path in their environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEAVE = "ABLATE_LEAVE"
"""Environment variable with the path of the file."""
LEFT = 75
"""Exit code, EX_TEMPFAIL of sysexits.h: the trial left after it had come further, and is to go on."""

NO_FURTHER = 76
"""Exit code: the process left, and no trial had come further."""


class Leaving(KeyboardInterrupt):
    """The trial has written its checkpoint and stops."""


@contextmanager
def can_be_asked(folder: Path) -> Iterator[None]:
    """Let this process and its children be asked to leave, by a file in a folder."""
    file = folder / f"{socket.gethostname()}-{os.getpid()}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.environ[LEAVE] = str(file)
    try:
        yield
    finally:
        del os.environ[LEAVE]
        file.unlink(missing_ok=True)


def can_leave() -> bool:
    """Return whether this process can be asked to leave."""
    return bool(os.environ.get(LEAVE))


def ask_to_leave() -> None:
    """Have the trial of this process stop at its next checkpoint."""
    with suppress(OSError):
        Path(os.environ[LEAVE]).touch()


def asked_to_leave() -> bool:
    """Return whether the trial is to stop at its next checkpoint."""
    return can_leave() and Path(os.environ[LEAVE]).exists()
