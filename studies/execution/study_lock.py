"""A study folder has one driver at a time; and what is said where somebody removes it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.errors import Fault, UserError
from pipeline.faults import chain, in_words, is_disk_full
from pipeline.run.layout import StudyFolder


@contextmanager
def only_driver(folder: StudyFolder, name: str) -> Iterator[None]:
    """Hold the study folder. Raises `UserError` when another driver holds it, and `Fault` where the folder, or its
    Optuna file, is removed meanwhile and work fails because of it."""
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.path / ".driver.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"study '{name}' is being run by another process in {folder.path}; wait for it, or use another --out"
        ) from None
    try:
        yield
    except (UserError, Fault):
        raise
    except Exception as error:
        removed = _removed(folder, error)
        if removed is None or is_disk_full(error):
            raise
        raise Fault(
            f"{removed} was removed meanwhile ({in_words(error)}). Run the same command again: it goes on from what is"
            " left"
        ) from error
    finally:
        lock.release()


def _removed(folder: StudyFolder, error: Exception) -> Path | None:
    """What is no longer there, and explains the exception."""
    if not folder.path.exists():
        return folder.path
    moved = any(getattr(link, "sqlite_errorname", "") == "SQLITE_READONLY_DBMOVED" for link in chain(error))
    return folder.optuna_file if moved and not folder.optuna_file.exists() else None
