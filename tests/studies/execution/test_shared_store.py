from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from studies.execution import shared_store
from studies.execution.shared_store import Answer, Question, answer, check_here, mount_of


def refused(root: Path) -> str:
    with pytest.raises(UserError) as said:
        check_here(root)
    assert "\n" not in str(said.value)
    return str(said.value)


def test_a_local_folder_offers_all_and_nothing_is_left(tmp_path: Path) -> None:
    check_here(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_store_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    said = refused(tmp_path)
    assert f"{tmp_path}" in said
    assert "cannot be shared by several machines: it has no locks (flock: No locks available); use a folder on" in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_locks_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    assert "two processes can hold the same lock (flock)" in refused(tmp_path)


def test_a_store_whose_locks_outlive_their_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "_try_lock", lambda path: shared_store.LOCK_HELD)
    assert "a lock outlives the process that held it (flock)" in refused(tmp_path)


def test_a_lock_that_cannot_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "TRY_LOCK", "raise OSError('the lock daemon is away')")
    assert "a lock cannot be tried: OSError: the lock daemon is away (lock)" in refused(tmp_path)


@pytest.mark.parametrize(("kind", "what"), [("file", "a file"), ("dir", "a folder")])
def test_a_store_that_cannot_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str) -> None:
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if source.is_dir() == (kind == "dir"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    assert f"{what} cannot be renamed in one step (Invalid cross-device link)" in refused(tmp_path)


def copied(source: Path, target: Path) -> None:
    """As layers over object storage do."""
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    shutil.rmtree(source) if source.is_dir() else source.unlink()


def in_two(source: Path, target: Path) -> None:
    if not source.is_dir():
        source.rename(target)
        return
    target.mkdir()
    source.rmdir() if not list(source.iterdir()) else None


def kept(source: Path, target: Path) -> None: ...


@pytest.mark.parametrize(
    ("rename", "words"),
    [
        (copied, "a file is copied when it is renamed, so that readers can find half of it"),
        (in_two, "a folder that is renamed does not arrive as a whole"),
        (kept, "a file that is renamed over another one does not take its place"),
    ],
)
def test_a_store_that_renames_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: Callable[[Path, Path], None], words: str
) -> None:
    monkeypatch.setattr(os, "replace", rename)
    assert words in refused(tmp_path)


def test_a_store_that_shows_appended_lines_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda file, data: len(data))
    assert "what is appended to a file is not seen by those who read it" in refused(tmp_path)


def test_a_store_that_keeps_no_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "utime", lambda path, times: None)
    assert "the time of a file cannot be set" in refused(tmp_path)


def test_a_store_that_sqlite_cannot_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked:
        def execute(self, sql: str) -> None:
            raise sqlite3.OperationalError("database is locked")

        def close(self) -> None: ...

    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout: Locked())
    assert "SQLite cannot lock its files there (database is locked)" in refused(tmp_path)


def test_a_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert "Read-only file system (tried-" in refused(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("server:/x {root} nfs rw,vers=3,nolock 0 0", "is mounted with nolock, so locks do not reach other machines"),
        ("server:/x {root} nfs4 rw,local_lock=flock 0 0", "is mounted with local_lock=flock"),
        ("mds:/x {root} lustre rw,localflock 0 0", "is mounted with localflock"),
        ("server:/x {root} nfs4 rw,vers=4.2,local_lock=none 0 0", None),
        ("server:/x {root}/other nfs rw,nolock 0 0", None),
        ("disk {root} ext4 rw,nolock 0 0", None),
        ("short line", None),
    ],
)
def test_mounts_whose_locks_end_at_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str | None
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\n{line.format(root=tmp_path)}\n")
    monkeypatch.setattr(shared_store, "MOUNTS", mounts)
    if words is None:
        check_here(tmp_path)
    else:
        assert words in refused(tmp_path)
        assert str(tmp_path) in refused(tmp_path)


def test_the_mount_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} nfs4 rw,hard 0 0\nc {tmp_path}/with\\040space tmpfs rw 0 0\n")
    monkeypatch.setattr(shared_store, "MOUNTS", mounts)
    assert mount_of(tmp_path / "x") == (tmp_path, "nfs4", ("rw", "hard"))
    assert mount_of(tmp_path / "with space/x")[1] == "tmpfs"
    assert mount_of(Path("/"))[1] == "ext4"
    mounts.unlink()
    assert mount_of(tmp_path)[1] == ""


def test_another_machine_that_sees_the_same(tmp_path: Path) -> None:
    with Question(tmp_path) as asked:
        reply = answer(tmp_path, asked.token, "far")
        assert reply == Answer("far", "")
        asked.check(reply)
    assert list(tmp_path.iterdir()) == []


def test_another_machine_that_has_another_folder(tmp_path: Path) -> None:
    with Question(tmp_path / "here") as asked:
        reply = answer(tmp_path / "there", asked.token, "far")
        with pytest.raises(UserError, match="on far, what other machines write there is not seen: it is another"):
            asked.check(reply)


def test_another_machine_where_locks_end_at_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Question(tmp_path) as asked:
        monkeypatch.setattr(shared_store, "_try_lock", lambda path: shared_store.LOCK_GOT)
        reply = answer(tmp_path, asked.token, "far")
        with pytest.raises(UserError, match=r"on far, locks that other machines hold are not seen \(flock\)"):
            asked.check(reply)


def test_another_machine_that_may_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(source: Path, target: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(source))

    with Question(tmp_path) as asked:
        monkeypatch.setattr(os, "replace", replace)
        reply = answer(tmp_path, asked.token, "far")
        with pytest.raises(UserError, match=r"on far, Read-only file system \(\.reply-far\)"):
            asked.check(reply)


def test_another_machine_whose_answer_does_not_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "LOOK_SECONDS", 0.2)
    with Question(tmp_path) as asked, pytest.raises(UserError) as said:
        asked.check(Answer("far", ""))
    assert f"what far writes is not seen on {socket.gethostname()} within 0.2 s" in str(said.value)


def test_the_command_that_another_machine_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Question(tmp_path) as asked:
        assert shared_store.main([str(tmp_path), asked.token]) == 0
        reply = json.loads(capsys.readouterr().out)
        asked.check(Answer(**reply))
    assert shared_store.main([str(tmp_path), "0" * 16]) == 1
    assert shared_store.main([]) == 2
