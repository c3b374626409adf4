"""Requirements on a study's folder for all processes that work on it: locks (`flock`) that are refused while another
process holds them, on any machine, and end with their holder.

Local file systems, NFS version 4, and version 3 with its lock daemon, offer them, unless they are mounted with locks
that end at the machine. Whoever starts to work on a study tests this first (`check_locks`), also against the trials
that run on other machines.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import UserError
from pipeline.run.layout import StudyFolder
from pipeline.run.store import is_held, try_lock
from studies.execution.status import read_status

LOOK_SECONDS = 3.0
"""Seconds to watch the status of a trial whose lock looks free; a trial at work renews its own every second."""


@contextmanager
def present(folder: StudyFolder) -> Iterator[None]:
    """Hold a lock in ``hands/`` that shows that this process is at work."""
    lock = try_lock(folder.path / "hands" / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
    assert lock is not None
    try:
        yield
    finally:
        lock.release()


def check_locks(folder: StudyFolder) -> None:
    """Refuse a study's folder without locks, or one in which a trial runs on another machine while its lock looks free
    from here. (A trial that died leaves a free lock too, but renews its status no more.)

    Raises `UserError`.
    """
    tried = folder.lock_file("tried")
    try:
        if (lock := try_lock(tried)) is not None:
            held = is_held(tried)
            lock.release()
            if not held:
                raise _refusal(folder, "two processes can hold the same lock (flock)")
    except OSError as error:
        raise _refusal(folder, f"it has no locks (flock: {error.strerror})") from None
    before = _free_elsewhere(folder)
    if before:
        time.sleep(LOOK_SECONDS)
    for path, (host, renewed) in _free_elsewhere(folder).items():
        if renewed != before.get(path, (host, renewed))[1]:
            raise _refusal(folder, f"locks that {host} holds are not seen on {socket.gethostname()} (flock)")


def _free_elsewhere(folder: StudyFolder) -> dict[Path, tuple[str, int]]:
    """Status files of trials that run on other machines while their lock looks free: machine, and time of the file."""
    found = dict[Path, tuple[str, int]]()
    for path in (folder.path / "status").glob("*.json"):
        status = read_status(path)
        if status is None or status.outcome or status.host == socket.gethostname():
            continue
        if not is_held(folder.lock_file(status.lock)):
            found[path] = status.host, path.stat().st_mtime_ns
    return found


def _refusal(folder: StudyFolder, lack: str) -> UserError:
    return UserError(
        f"{folder.root} cannot be shared by several processes: {lack}; use a local folder, NFS 4 or a parallel file"
        " system with locks (--out)"
    )
