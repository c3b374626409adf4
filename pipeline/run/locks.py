"""Locks between processes, on any machine that shares the folder; the system frees them when their holder ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from filelock import FileLock, Timeout


def try_lock(path: Path) -> FileLock | None:
    """Hold a lock until it is released or this process ends; None where another process holds it.

    Raises `OSError` on a file system without locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock at this moment."""
    try:  # read-only and shared, so that two processes that look do not disturb each other
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
