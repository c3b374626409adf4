"""Sets aside what of a study's folder is damaged; the start that follows makes it again, from the store or by
training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import Damaged
from pipeline.run.layout import StudyFolder, read_sealed, set_aside


def set_damaged_aside(folder: StudyFolder, say: Callable[[str], None]) -> None:
    """Move every damaged file of a study to ``.damaged/``, one line for each."""
    for path, check, then in _checks(folder):
        try:
            check(path)
        except Damaged as error:
            say(f"{path} is damaged: {error.why}; set aside as {set_aside(path)}; {then}")


def _checks(folder: StudyFolder) -> Iterator[tuple[Path, Callable[[Path], Any], str]]:
    """Every file with what reads it and what becomes of it."""
    for path in folder.trial_files():
        yield path, folder.read, "the trial is recorded again from the store, or runs again"
    if folder.study_file.exists():
        yield folder.study_file, lambda _: folder.started(), "written again"
    if folder.search_file.exists():
        yield folder.search_file, read_sealed, "made again from the records"
