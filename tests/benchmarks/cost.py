"""What a command took: run in a process of its own, by the wall clock and by the processor's."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    wall: float
    cpu: float
    """Seconds of all threads."""
    gib: float
    """Peak resident memory of the process."""


def measured(command: list[str]) -> Cost:
    """Run a command to its good end."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)
