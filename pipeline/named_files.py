"""Files that a user names: what is there is looked at before it is opened, since a pipe or a device never ends."""

from __future__ import annotations

import csv
import itertools
import stat
from pathlib import Path

from pipeline.errors import UserError
from pipeline.wording import shown

MOST_BYTES = 16 * 2**30
"""Bytes of the largest table, which is read into memory."""
MOST_ENTRIES = 100_000
"""Files and folders below a folder that is searched: ``/`` has more, and was not meant."""
UNREADABLE = (
    ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError, RecursionError, MemoryError, OSError,
    csv.Error,
)  # fmt: skip
"""Exceptions of libraries at a file of another kind than its name suggests; pyarrow's own classes are subclasses."""
FILE, FOLDER = "a file", "a folder"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def place(name: str | Path) -> Path:
    """The absolute path that a name on the command line stands for. Raises `UserError` for an unknown user's home."""
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError:
        raise UserError(f"'{shown(name)}': there is no user of this name here; write the path out") from None


def kind_of(path: Path) -> str | None:
    """Return what is at a path, links followed, in words; None where nothing is, or no file system could hold it."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "something else")
    except (OSError, ValueError):
        return None


def is_file(path: Path) -> bool:
    """Return whether a plain file is there; no path makes it raise, as a very long one does with `Path.is_file`."""
    return kind_of(path) == FILE


def is_folder(path: Path) -> bool:
    """Return whether a folder is there."""
    return kind_of(path) == FOLDER


def require_file(path: Path, origin: str, most: int = MOST_BYTES) -> None:
    """Refuse what is no plain file, or is larger than `most` bytes. Raises `UserError`."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name holds a null character"
        raise UserError(f"{shown(origin, 400)}: cannot be read: {why}") from None
    if (kind := _KINDS.get(stat.S_IFMT(found.st_mode), "something else")) != FILE:
        raise UserError(f"{shown(origin, 400)}: cannot be read: it is {kind}, and a file is needed")
    if found.st_size > most:
        raise UserError(
            f"{shown(origin, 400)}: cannot be read: it has {found.st_size:,} bytes, and at most {most:,} are read"
        )


def below(folder: Path, origin: str) -> list[Path]:
    """All that lies below a folder, links to folders not followed, in order. Raises `UserError` for more than a data
    set, a model or logs consist of."""
    try:
        found = list(itertools.islice(folder.rglob("*"), MOST_ENTRIES + 1))
    except OSError as error:  # a folder of the system's own, such as /proc
        raise UserError(f"{shown(origin, 400)}: cannot be searched: {error.strerror}") from None
    if len(found) > MOST_ENTRIES:
        raise UserError(
            f"{shown(origin, 400)}: more than {MOST_ENTRIES:,} files lie below it; name a folder of its own"
        )
    return sorted(found)


def leaves(path: Path, folder: Path) -> bool:
    """Return whether a path below `folder` is a link that leads out of it, or to nowhere.

    A snapshot in the hub's cache links to ``../../blobs``: there the whole repository of the cache counts as inside.
    """
    home = folder.resolve()
    if home.parent.name == "snapshots" and (home.parent.parent / "blobs").is_dir():
        home = home.parent.parent
    try:
        return not path.resolve(strict=True).is_relative_to(home)
    except (OSError, RuntimeError):  # it leads to nothing, or in a circle
        return True
