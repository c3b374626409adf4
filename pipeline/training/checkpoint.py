"""Checkpoints of a whole trial: atomic, two kept, a damaged one falls back to the one before."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

KEPT = 2
DIGITS = 16


class _Hashing:
    """A file that hashes what is written to it: reading gigabytes back would take as long again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256 = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()[:DIGITS]


def save(folder: Path, update: int, state: dict[str, Any]) -> int:
    """Write ``update_<n>.<sha256>.pt`` in one step, then delete all but the newest two. Returns the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".writing"
    try:
        with beside.open("wb") as file:
            hashing = _Hashing(file)
            torch.save(state, cast(Any, hashing))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
    except BaseException:
        beside.unlink(missing_ok=True)  # on a full disk, half a checkpoint only takes space
        raise
    os.replace(beside, folder / f"update_{update:08d}.{hashing.digest}.pt")
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return size


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(folder.glob("update_*.pt"))


def load_latest(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that is what was written (tensors and plain values only), or None.

    A damaged one is set aside. Its name carries the digest, since the file format detects a flipped bit in
    a weight no more than we would.
    """
    for path in reversed(checkpoints(folder)):
        if path.name.split(".")[1] == _digest(path):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        warn(f"checkpoint {path.name} is damaged; falling back to the one before")
        os.replace(path, path.with_suffix(".damaged"))
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
