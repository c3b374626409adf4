"""What a study's folder must offer to all processes that work on it: locks (`flock`) that are refused while another
process holds them, on any machine, and end with their holder.

Local file systems, NFS version 4, and version 3 with its lock daemon, offer them, unless they are mounted with locks
that end at the machine. Whoever starts to work on a study tests this first (`check_locks`), also against the processes
of other machines that are at work.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from pipeline.errors import UserError
from pipeline.run.layout import StudyFolder
from pipeline.run.locks import is_held, try_lock

RENEW_SECONDS = 1.0
"""Between two times of the file of a process at work."""
LOOK_SECONDS = 3 * RENEW_SECONDS
"""How long a file whose lock looks free is watched."""


@contextmanager
def present(folder: StudyFolder) -> Iterator[None]:
    """Hold a lock in ``hands/`` that shows that this process is at work, and renew the time of its file meanwhile."""
    name, ended = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}", threading.Event()
    path = folder.path / "hands" / name
    path.parent.mkdir(exist_ok=True)
    lock = FileLock(path)
    lock.acquire()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            with suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lock.release()


def check_locks(folder: StudyFolder) -> None:
    """Refuse a study's folder without locks, or one in which a process of another machine is `present` while its lock
    looks free from here. (A process that died leaves a free lock too, but renews its file no more.)

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
    for path, renewed in _free_elsewhere(folder).items():
        if renewed != before.get(path, renewed):
            raise _refusal(folder, f"locks that {_host(path)} holds are not seen on {socket.gethostname()} (flock)")


def _free_elsewhere(folder: StudyFolder) -> dict[Path, int]:
    """Files of other machines whose lock looks free, and their times."""
    found = dict[Path, int]()
    for path in (folder.path / "hands").glob("*"):
        with suppress(FileNotFoundError):
            if _host(path) != socket.gethostname() and not is_held(path):
                found[path] = path.stat().st_mtime_ns
    return found


def _host(path: Path) -> str:
    return path.name.rsplit("-", 2)[0]


def _refusal(folder: StudyFolder, lack: str) -> UserError:
    return UserError(
        f"{folder.root} cannot be shared by several processes: {lack}; use a local folder, NFS 4 or a parallel file"
        " system with locks (--out)"
    )
