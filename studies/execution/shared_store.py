"""What an output root must offer where trials run on several machines, and tests of it.

    locks        `flock` on a file is refused while another process holds it, on any machine, and ends with its holder
    rename       `os.replace` puts a file over a file, and moves a folder, in one step
    close, open  who opens a file or folder finds what was written before its writer closed it, on any machine
    append       what one process appends is found by those who read, whole lines in order
    SQLite       databases can be locked (`fcntl`); one machine writes to each

Local file systems, NFS version 4, and version 3 with its lock daemon, offer all of it, unless they are mounted with
locks that end at the machine. `check_here` tests what one machine can see. For what takes two, a `Question` is open
here while `answer` is called on the other one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError

MOUNTS = Path("/proc/self/mounts")
LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock"}
"""Options of NFS and Lustre with which a lock of one machine means nothing to another."""
LOOK_SECONDS = 10.0
"""How long what another machine has written may take to be seen."""
LOCK_HELD, LOCK_GOT = 1, 0
TRY_LOCK = f"""
import fcntl, sys
with open(sys.argv[1], "a") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit({LOCK_HELD})
"""
"""A process of its own: locks of one process need not exclude each other."""


class Lacking(Exception):
    """A store does not offer what is needed; the text says what."""


def check_here(root: Path) -> None:
    """Test an output root from this machine. Raises `UserError`, in one sentence."""
    try:
        _check_mount(root)
        with _folder(root) as folder:
            _check_locks(folder / "lock")
            _check_rename(folder)
            _check_append(folder / "lines")
            _check_sqlite(folder / "base.db")
    except Lacking as lack:
        raise refusal(root, str(lack)) from None
    except OSError as error:
        raise refusal(root, f"{error.strerror or error} ({Path(error.filename or root).name})") from None


def refusal(root: Path, lack: str) -> UserError:
    """The sentence for a store that lacks something."""
    kind = mount_of(root)[1]
    named = f" ({kind})" if kind else ""
    return UserError(
        f"{root}{named} cannot be shared by several machines: {lack}; use a folder on NFS 4 or a parallel file system"
        " with locks (--out), or one machine (--executor processes)"
    )


def mount_of(path: Path) -> tuple[Path, str, Sequence[str]]:
    """Where the file system of a path is mounted, its type and its options; empty words where that is not known."""
    best: tuple[Path, str, Sequence[str]] = (Path("/"), "", ())
    with suppress(OSError):
        real = path.resolve()
        for line in MOUNTS.read_text("utf-8", "replace").splitlines():
            fields = line.split()
            place = Path(fields[1].replace("\\040", " "))
            if len(fields) > 3 and real.is_relative_to(place) and len(place.parts) >= len(best[0].parts):
                best = (place, fields[2], tuple(fields[3].split(",")))
    return best


@dataclass(frozen=True)
class Answer:
    """What another machine found."""

    host: str
    lack: str
    """Empty where nothing is lacking."""


class Question:
    """A lock and a file for other machines to look at. Use it as a context; `token` is what they are asked with."""

    def __init__(self, root: Path) -> None:
        self.root, self.token = root, secrets.token_hex(8)
        self._folder = _folder(root, f"asked-{self.token}")

    def __enter__(self) -> Question:
        self.folder = self._folder.__enter__()
        self._lock = (self.folder / "lock").open("a")
        _flock(self._lock.fileno())
        _write(self.folder / "said", self.token)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
        self._folder.__exit__(None, None, None)

    def check(self, reply: Answer) -> None:
        """Look at what the other machine has published. Raises `UserError`, in one sentence."""
        if reply.lack:
            raise refusal(self.root, f"on {reply.host}, {reply.lack}")
        deadline = time.monotonic() + LOOK_SECONDS
        while _read(self.folder / f"reply-{reply.host}" / "said") != self.token:
            if time.monotonic() > deadline:
                here = socket.gethostname()
                raise refusal(self.root, f"what {reply.host} writes is not seen on {here} within {LOOK_SECONDS:g} s")
            next(self.folder.iterdir())  # to open a folder asks the server
            time.sleep(0.05)


def answer(root: Path, token: str, host: str = "") -> Answer:
    """On another machine: does it see what was written, is the lock held, can it publish?"""
    host = host or socket.gethostname()
    folder = _place(root) / f"asked-{token}"
    try:
        if _read(folder / "said") != token:
            return Answer(host, "what other machines write there is not seen: it is another folder, or not mounted")
        if _try_lock(folder / "lock") == LOCK_GOT:
            return Answer(host, "locks that other machines hold are not seen (flock)")
        beside = folder / f".reply-{host}"
        beside.mkdir()
        _write(beside / "said", token)
        os.replace(beside, folder / f"reply-{host}")
    except OSError as error:
        return Answer(host, f"{error.strerror or error} ({Path(error.filename or folder).name})")
    return Answer(host, "")


def _place(root: Path) -> Path:
    return root / ".shared"


@contextmanager
def _folder(root: Path, name: str = "") -> Iterator[Path]:
    """An empty folder to try things in."""
    folder = _place(root) / (name or f"tried-{secrets.token_hex(8)}")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            _place(root).rmdir()


def _check_mount(root: Path) -> None:
    place, kind, options = mount_of(root)
    for option in sorted(LOCAL_LOCKS.intersection(options)):
        if kind.startswith(("nfs", "lustre")):
            raise Lacking(f"{place} is mounted with {option}, so locks do not reach other machines")


def _check_locks(path: Path) -> None:
    with path.open("a") as file:
        _flock(file.fileno())
        if _try_lock(path) == LOCK_GOT:
            raise Lacking("two processes can hold the same lock (flock)")
    if _try_lock(path) != LOCK_GOT:
        raise Lacking("a lock outlives the process that held it (flock)")


def _flock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Lacking(f"it has no locks (flock: {error.strerror or errno.errorcode.get(error.errno or 0)})") from None


def _try_lock(path: Path) -> int:
    """Have another process of this machine try. Raises `OSError` where it can neither get it nor is refused."""
    done = subprocess.run([sys.executable, "-S", "-c", TRY_LOCK, str(path)], capture_output=True, text=True)
    if done.returncode not in (LOCK_GOT, LOCK_HELD) or (done.returncode == LOCK_HELD and done.stderr):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(errno.ENOLCK, f"a lock cannot be tried: {said[-1]}", str(path))
    return done.returncode


def _check_rename(folder: Path) -> None:
    """A file over a file, and a folder with its content to a new name."""
    old, new = folder / "old", folder / "new"
    _write(old, "old")
    _write(new, "new")
    inode = new.stat().st_ino
    _replace(new, old)
    if _read(old) != "new" or new.exists():
        raise Lacking("a file that is renamed over another one does not take its place")
    if old.stat().st_ino != inode:
        raise Lacking("a file is copied when it is renamed, so that readers can find half of it")
    partial, finished = folder / "partial", folder / "finished"
    partial.mkdir()
    _write(partial / "content", "whole")
    _replace(partial, finished)
    if _read(finished / "content") != "whole" or partial.exists():
        raise Lacking("a folder that is renamed does not arrive as a whole")


def _replace(source: Path, target: Path) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        what = "folder" if source.is_dir() else "file"
        raise Lacking(f"a {what} cannot be renamed in one step ({error.strerror or error})") from None


def _check_append(path: Path) -> None:
    """Lines that one descriptor appends, read through another."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for count in (1, 2):
            os.write(file, b"line\n")
            if _read(path) != "line\n" * count:
                raise Lacking("what is appended to a file is not seen by those who read it")
        os.utime(path, (1, 1))
        if path.stat().st_mtime != 1:
            raise Lacking("the time of a file cannot be set")
    finally:
        os.close(file)


def _check_sqlite(path: Path) -> None:
    try:
        base = sqlite3.connect(path, timeout=1)
        try:
            base.execute("create table numbers (number integer)")
            base.execute("insert into numbers values (7)")
            base.commit()
        finally:
            base.close()
    except sqlite3.Error as error:
        raise Lacking(f"SQLite cannot lock its files there ({error})") from None


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text("utf-8")
    return ""


def main(arguments: Sequence[str]) -> int:
    """``python -m studies.execution.shared_store ROOT TOKEN``: the answer of this machine, as a line of JSON."""
    if len(arguments) != 2:
        print("usage: python -m studies.execution.shared_store ROOT TOKEN", file=sys.stderr)
        return 2
    reply = answer(Path(arguments[0]), arguments[1])
    print(json.dumps({"host": reply.host, "lack": reply.lack}))
    return 1 if reply.lack else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
