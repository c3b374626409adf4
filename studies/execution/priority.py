"""A lower priority that reaches beyond its own terminal."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

GROUP = Path("/proc/self/autogroup")
"""Where Linux shares the CPU among sessions before it looks at the priority of a process: the priority of this one."""
TRIES, WAIT_SECONDS = 20, 0.11
"""The kernel takes one change in a tenth of a second from those who are not root."""


def give_way() -> None:
    """Have other sessions go first too, where this process was started with a lower priority (``nice``).

    It gets a session of its own, so that the terminal that it was started from keeps its priority. Does nothing
    otherwise.
    """
    priority = os.nice(0) if hasattr(os, "nice") else 0
    if priority <= 0 or not GROUP.exists():
        return
    with suppress(OSError):
        os.setsid()
        for _ in range(TRIES):
            try:
                GROUP.write_text(str(priority))
                return
            except BlockingIOError:
                time.sleep(WAIT_SECONDS)
