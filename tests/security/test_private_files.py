"""Files with content of the user's are readable by the user alone, and have names that cannot be guessed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.run.layout import replacing, writable
from studies.faults import explained


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A user whose files are readable by all unless a program restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_and_folders_are_private_and_old_folders_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o775)
    for folder, wanted in ((tmp_path / "above" / "out", 0o700), (tmp_path / "shared", 0o775)):
        writable(folder)
        assert mode(folder) == wanted
    with replacing(tmp_path / "record.json") as beside:
        assert mode(beside) == 0o600
        beside.write_text("{}")


def test_the_log_of_a_fault_is_private_and_its_name_cannot_be_guessed(tmp_path: Path) -> None:
    logs = [Path(str(explained(ValueError("secret"), tmp_path)).partition("details: ")[2]) for _ in range(2)]
    assert {log.parent for log in logs} == {tmp_path / "log"}
    assert all(mode(log) == 0o600 and "ValueError: secret" in log.read_text() for log in logs)
    assert sum(a != b for a, b in zip(logs[0].stem, logs[1].stem, strict=True)) > 2, "more than the time differs"
