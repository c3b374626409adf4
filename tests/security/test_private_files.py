"""Files with something of the user's are the user's alone, and have names that nobody can lay in wait for."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.faults import explained
from pipeline.run.layout import replacing, writable


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A user whose files are readable by all unless a program says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def log_of(root: Path) -> Path:
    return Path(str(explained(ValueError("secret"), root)).partition("details: ")[2])


def test_a_new_output_root_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    writable(tmp_path / "above" / "out")
    assert mode(tmp_path / "above" / "out") == 0o700
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o775)
    writable(shared)
    assert mode(shared) == 0o775


def test_the_log_of_a_fault_is_private(tmp_path: Path) -> None:
    log = log_of(tmp_path / "out")
    assert log.parent == tmp_path / "out" / "log"
    assert log.name.startswith("fault-")
    assert mode(log) == 0o600
    assert "ValueError: secret" in log.read_text()
    assert log_of(tmp_path / "out") != log, "two faults of one second"


def test_without_an_output_root_its_name_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    first, second = log_of(tmp_path / "file" / "out"), log_of(tmp_path / "file" / "out")
    assert first.parent == second.parent == tmp_path
    for log in (first, second):
        assert log.name.startswith("ablate-fault-")
        assert mode(log) == 0o600
    differing = [a for a, b in zip(first.stem, second.stem, strict=True) if a != b]
    assert len(differing) > 2, "more than the time differs"


def test_half_written_files_are_private(tmp_path: Path) -> None:
    with replacing(tmp_path / "record.json") as beside:
        assert mode(beside) == 0o600
        beside.write_text("{}")
