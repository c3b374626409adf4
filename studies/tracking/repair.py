"""Sets aside what of a study's folder is damaged; the run that follows makes it again, from the store or by
training."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import Damaged, Fault
from pipeline.run.layout import Layout, StudyFolder, read_json, read_sealed, set_aside
from studies.tracking.trial_run import store_mark

_BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite keeps beside a database: left there, it would be applied to the one that takes the place of a damaged
one."""

_HEADER = b"SQLite format 3\0"


def repair(folder: StudyFolder, tell: Callable[[str], None]) -> None:
    """Move every damaged file of a study to ``.damaged/``, one line for each."""
    for path, check, then in _checks(folder):
        _repair(path, check, set_database_aside if path == folder.optuna_file else set_aside, then, tell)


def _repair(
    path: Path, check: Callable[[Path], Any], aside: Callable[[Path], Path], then: str, tell: Callable[[str], None]
) -> None:
    """Move a file that `check` finds damaged out of the way, and say what becomes of it."""
    try:
        check(path)
    except Damaged as error:
        tell(f"{path} is damaged: {error.why}; set aside as {aside(path)}; {then}")


def _checks(folder: StudyFolder) -> Iterator[tuple[Path, Callable[[Path], Any], str]]:
    """Every file with what reads it and what becomes of it."""
    for path in folder.trial_files():
        yield path, folder.read, "the trial is recorded again from the store, or runs again"
    if folder.study_file.exists():
        yield folder.study_file, lambda _: folder.started(), "written again"
    if folder.search_file.exists():
        yield folder.search_file, read_sealed, "made again from the records"
    if folder.optuna_file.exists():
        yield folder.optuna_file, check_database, "made again from the records"


def repair_store(layout: Layout, tell: Callable[[str], None]) -> None:
    """Set a garbled MLflow database aside, and forget what a database that has gone was told: a new one has to be told
    everything."""
    database = layout.mlflow_file
    if database.exists() and not is_database(database):
        tell(
            f"{database} is damaged: it is no SQLite database; set aside as {set_database_aside(database)}; all is sent"
            " to a new one"
        )
    if not database.exists():
        for state in (layout.root / "studies").glob("*/*/mlflow/*.json"):
            with suppress(Fault):
                if read_json(state).get("uri") == store_mark(layout.mlflow_uri, state):
                    state.unlink()


def repair_states(folder: StudyFolder, tell: Callable[[str], None]) -> None:
    """Move damaged state files of a study's MLflow runs to ``.damaged/``; those runs are made again."""
    for state in sorted((folder.path / "mlflow").glob("*.json")):
        _repair(state, read_sealed, set_aside, "its run is sent to MLflow again", tell)


def is_database(path: Path) -> bool:
    """Whether a file begins as SQLite's do; an empty one is a database without tables."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_HEADER)) in (_HEADER, b"")


def check_database(path: Path) -> None:
    """Let SQLite look over a database. Raises `Damaged`."""
    if not path.is_file():
        raise Damaged(path, "it is a folder")
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
        ) as database:  # rw: SQLite rolls back what a kill left
            report = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return
        raise Damaged(path, str(error)) from None
    if report != "ok":
        raise Damaged(path, report.splitlines()[-1])


def set_database_aside(path: Path) -> Path:
    """`set_aside` of a database together with its journal."""
    for beside in (path.with_name(path.name + suffix) for suffix in _BESIDE):
        if beside.exists():
            set_aside(beside)
    return set_aside(path)
