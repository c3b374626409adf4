"""A study folder has one driver at a time; and what is said where somebody removes it meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.errors import Fault, UserError
from pipeline.faults import chain, in_words, is_disk_full
from pipeline.run.layout import StudyFolder


@contextmanager
def only_driver(folder: StudyFolder, name: str) -> Iterator[None]:
    """Hold the study folder. Raises `UserError` when another driver holds it, and `Fault` where the folder, or its file
    of Optuna, is removed while it is held and that ends what is done in it."""
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
            f"{removed} was removed while the study ran ({in_words(error)}); finished stages and checkpoints are"
            " kept. Run the same command again: it continues"
        ) from error
    finally:
        lock.release()


def _removed(folder: StudyFolder, error: Exception) -> Path | None:
    """What is no longer there, and explains the exception."""
    if not folder.path.exists():
        return folder.path
    of_database = any(isinstance(link, sqlite3.Error) for link in chain(error))
    return folder.optuna_file if of_database and not folder.optuna_file.exists() else None
