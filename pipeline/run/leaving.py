"""A trial that has to leave its machine within minutes, such as at a scheduler's time limit: it finishes the update at
hand, writes a checkpoint and stops.

A file asks for it, so that all processes of the trial learn of it: `LEAVE` names the file in their environment. Who
starts the trial deletes the file of an earlier start.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LEAVE = "ABLATE_LEAVE"
"""Environment variable with the path of the file; set where a scheduler runs the trial."""
LEFT = 75
"""Exit code, EX_TEMPFAIL of sysexits.h: the trial left after it had come further, and wants to go on."""


class Leaving(KeyboardInterrupt):
    """The trial has written its checkpoint and stops."""


def can_leave() -> bool:
    """Whether a scheduler runs this trial."""
    return bool(os.environ.get(LEAVE))


def ask_to_leave() -> None:
    """Have the trial of this process stop at its next checkpoint."""
    with suppress(OSError):
        Path(os.environ[LEAVE]).touch()


def asked_to_leave() -> bool:
    """Whether the trial is to stop at its next checkpoint."""
    return can_leave() and Path(os.environ[LEAVE]).exists()
