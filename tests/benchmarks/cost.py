"""What a command took, run in a process of its own, and how long the places of a study stay free."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

import numpy as np


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


def free_seconds(times: np.ndarray, slots: int) -> np.ndarray:
    """How long the places stay free: the k-th trial to end makes room for the one that starts as number k + `slots`.

    `times`: a row per trial with its begin and its end, in seconds.
    """
    begins, ends = np.sort(times[:, 0]), np.sort(times[:, 1])
    return np.asarray(begins[slots:] - ends[: len(ends) - slots])
