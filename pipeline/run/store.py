"""A content-addressed store of finished folders: key, lock, atomic publish, verify.

    <root>/<stage>/<key>/            finished: files and, written last, manifest.json
    <root>/<stage>/.partial/<key>/   being built, with the token of its builder; survives a kill, so that a resumable
                                     stage can go on
    <root>/<stage>/.damaged/         set aside, never deleted behind the user's back
    <root>/<stage>/.kept/<key>/      what a stage needs to take up an artifact again that a cap has ended
    <root>/<stage>/.replaced/<key>/  for a moment, the artifact that a new one takes the place of
    <root>/<stage>/.locks/<key>      one builder at a time

A kill at any moment leaves a finished artifact or a partial one, never a half-published one: the manifest
is the last file written and `os.replace` the only way into place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.config.trial import canonical_json
from pipeline.errors import Damaged, Fault, Gone
from pipeline.run.layout import HALF_WRITTEN, StudyFolder, TrialRecord, read_sealed, sealed, set_aside, write_atomic

MANIFEST = "manifest.json"
VOLATILE = "log/"
"""Files below this folder (timings, cost) are kept and verified, but are no part of an artifact's identity."""
WEIGHTS = ".safetensors"
"""Files that only training, sampling and `export` read; those of a study can be tens of gigabytes."""

OWNER = ".owner"
"""File of a partial folder: the token of the process that builds it."""


class BuiltElsewhere(Exception):
    """Another process builds the artifact at this moment."""


@dataclass(frozen=True)
class Artifact:
    """The finished output of one stage."""

    stage: str
    key: str
    path: Path
    digest: str
    """Hash of its files (`log/` left out) and of `meta`: what the stages below it depend on."""
    meta: dict[str, Any] = field(default_factory=dict)
    """The stage's return value."""
    finished: str | None = None
    """UTC, ISO 8601: when the stage first ended under this key."""


@dataclass(frozen=True)
class Manifest:
    """The content of a finished artifact's manifest."""

    files: Mapping[str, str]
    """SHA-256 by path within the artifact."""
    digest: str
    meta: dict[str, Any]
    finished: str
    """UTC, ISO 8601: when the stage first ended under this key, even if the artifact was built again later."""
    weights: Mapping[str, list[int]]
    """Size [bytes] and time [ns] of each file of weights as it was published."""


class Store:
    """Artifacts under one root.

    `warn` receives a line for each damaged artifact. With ``wait=False``, `build` raises `BuiltElsewhere` instead of
    waiting for another process.
    """

    def __init__(self, root: Path, warn: Callable[[str], None] = lambda message: None, *, wait: bool = True) -> None:
        self.root, self.warn, self.wait = root, warn, wait

    def find(self, stage: str, key: str, *, weights: bool = True) -> Artifact | None:
        """The verified artifact, or None. Raises `Damaged` when its files are not those of its manifest.

        With ``weights=False``, for a caller that will not read them, weights count as intact while their size and time
        are those with which they were published. A reader verifies them.
        """
        for path in (self.root / stage / key, self._replaced(stage, key)):
            if _is_there(path):
                return _read(stage, key, path, weights)
        return None

    def build(
        self,
        stage: str,
        key: str,
        identity: Mapping[str, Any],
        make: Callable[[Path], dict[str, Any]],
        *,
        resumable: bool,
        final: Callable[[Artifact], bool] = lambda artifact: True,
        kept: str | None = None,
    ) -> Artifact:
        """Build an artifact once, however many processes ask for it, and publish it in one step.

        A damaged one is reported, set aside and built again, under the lock of its key: another process
        may have done so a moment ago.
        `make` fills the folder that it is given and returns what goes into the manifest as `meta`. With
        `resumable` it may find there what an earlier, killed call left. An artifact that is not `final` is built
        again and takes the place of the old one, which stays readable until then. If `make` leaves a folder `kept`, it
        is put beside the artifact, and put back before the artifact is built again. Raises `BuiltElsewhere` in a
        store that does not wait, and `Fault` where another process has begun the artifact meanwhile: a lock can be
        lost with the connection to a file server.
        """
        locks = self.root / stage / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(locks / key).acquire(timeout=-1 if self.wait else 0)
        except Timeout:
            raise BuiltElsewhere(key) from None
        with held:
            path, old = self.root / stage / key, self._replaced(stage, key)
            if old.exists() and not path.exists():  # its successor did not come: a kill between the two
                os.replace(old, path)
            try:
                artifact = self.find(stage, key)
            except Damaged as error:
                artifact = None
                self.warn(f"{error}; set aside as {set_aside(path)} and built again")
            if artifact and final(artifact):
                return artifact
            partial, aside = self.partial(stage, key), self.root / stage / ".kept" / key
            if not resumable:
                shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True, exist_ok=True)
            if kept and aside.exists() and not (partial / kept).exists():
                os.replace(aside, partial / kept)
            for half_written in partial.rglob(f".*{HALF_WRITTEN}"):
                half_written.unlink()
            token = secrets.token_hex(8)
            (partial / OWNER).write_text(token, "ascii")
            meta = make(partial)
            owner = partial / OWNER
            if not owner.exists() or owner.read_text("ascii", "replace") != token:
                raise Fault(f"{partial} was taken over by another process: the lock on it was lost")
            owner.unlink()
            if kept and (partial / kept).exists():
                aside.parent.mkdir(exist_ok=True)
                os.replace(partial / kept, aside)
            write_manifest(partial, stage, key, identity, meta, self._first_finished(stage, key))
            # Where an older one is, a reader finds that one or this one at any moment.
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)
                old.parent.mkdir(exist_ok=True)
                os.replace(path, old)
            os.replace(partial, path)
            shutil.rmtree(old, ignore_errors=True)
        built = self.find(stage, key)
        if built is None:
            raise RuntimeError(f"{stage} {key} vanished while it was published")
        return built

    def partial(self, stage: str, key: str) -> Path:
        return self.root / stage / ".partial" / key

    def is_building(self, stage: str, key: str) -> bool:
        return is_held(self.root / stage / ".locks" / key)

    def identities(self, stage: str) -> Iterator[dict[str, Any]]:
        """Yield the identities (origins) of the finished artifacts of a stage; newest first."""
        paths = [path for path in (self.root / stage).glob(f"*/{MANIFEST}") if not path.parent.name.startswith(".")]
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            with suppress(Fault):
                identity = read_sealed(path)["identity"]
                if "config" in identity:  # imported artifacts have none
                    yield identity

    def _first_finished(self, stage: str, key: str) -> str | None:
        """Return the earliest finish time of the artifacts with this key that are replaced or were set aside."""
        times = []
        for path in (self.root / stage / key, *(self.root / stage / ".damaged").glob(f"{key}-*")):
            with suppress(Damaged):
                times.append(read_manifest(path).finished)
        return min(times, default=None)

    def _replaced(self, stage: str, key: str) -> Path:
        return self.root / stage / ".replaced" / key


def write_manifest(
    path: Path,
    stage: str,
    key: str,
    identity: Mapping[str, Any],
    meta: Mapping[str, Any],
    finished: str | None = None,
) -> None:
    """State what a folder holds; the last file written before it is published. `finished`: now, by default."""
    files = {name: file_digest(file) for name, file in _files(path)}
    finished = finished or datetime.now(UTC).isoformat(timespec="microseconds")
    content = {
        "stage": stage,
        "key": key,
        "identity": dict(identity),
        "files": files,
        "digest": _digest(files, meta),
        "meta": dict(meta),
    }
    weights = {name: _state(path / name) for name in files if name.endswith(WEIGHTS)}
    write_atomic(path / MANIFEST, sealed({**content, "finished": finished, "weights": weights}))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the artifact in the folder `path`, consistent in itself. Raises `Damaged`, or `Gone` without such
    a folder."""
    if not path.exists():
        raise Gone(path)
    file = path / MANIFEST
    try:
        state = file.stat()
    except OSError:
        raise Damaged(path, f"it has no {MANIFEST}") from None
    return _manifest(file, state.st_mtime_ns, state.st_size, state.st_ino)


def file_of(folder: StudyFolder, record: TrialRecord, stage: str, name: str) -> Path:
    """The path of one file of a trial's artifact, after its content was compared with the manifest and that with the
    record.

    Raises `Damaged`, or `Gone` where the artifact is no longer in the store.
    """
    ref = record.stages[stage]
    return file_in(folder, ref.path, name, ref.digest)


def read_columns(
    folder: StudyFolder, record: TrialRecord, stage: str, name: str, wanted: Collection[str]
) -> dict[str, list[Any]]:
    """The columns among `wanted` that a table in parquet has, of a trial's artifact; raises as `file_of`."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file_of(folder, record, stage, name)) as file:
        table = file.read([one for one in file.schema_arrow.names if one in wanted], use_threads=False)
    # As lists: pyarrow imports pandas to make an array.
    return {one: table[one].to_pylist() for one in table.column_names}


def file_in(folder: StudyFolder, where: str, name: str, digest: str | None = None) -> Path:
    """`file_of` for an artifact by its path below the output root, and the digest that it must have."""
    with folder.naming_remedy():
        path, manifest = artifact_of(folder, where, digest)
        return checked(path, name, manifest)


def artifact_of(folder: StudyFolder, where: str, digest: str | None = None) -> tuple[Path, Manifest]:
    """Folder and manifest of an artifact that a study refers to. Raises `Damaged`, or `Gone`."""
    with folder.naming_remedy():
        path = inside(folder.root, where)
        manifest = read_manifest(path)
        if digest is not None and manifest.digest != digest:
            raise Damaged(path / MANIFEST, "it describes another artifact than the one in the trial's record")
        return path, manifest


def checked(path: Path, name: str, manifest: Manifest) -> Path:
    """The file `name` of an artifact, after its content was compared with the manifest.

    Raises `Damaged`; the file's time is then made new, so that a rerun that trusts times verifies it as well.
    """
    file = path / name
    if name not in manifest.files:
        raise Damaged(file, "it is not in the manifest") if file.exists() else Gone(file)
    if not file.is_file():
        raise Damaged(file, "it is a folder" if file.is_dir() else "the manifest lists it, and it is not there")
    if file_digest(file) != manifest.files[name]:
        with suppress(OSError):
            os.utime(file)
        raise Damaged(file, "its content has changed since it was written (checksum differs)")
    return file


def inside(root: Path, relative: str) -> Path:
    """A path under the output root, whose own entries may be links to other disks. Raises `Damaged` where a record
    points elsewhere."""
    path, parts = root / relative, Path(relative).parts
    within = parts and parts[0] not in ("/", "..") and path.resolve().is_relative_to((root / parts[0]).resolve())
    if not within:
        raise Damaged(path, f"a record points to it, and it leaves the output folder {root}")
    return path


def _is_there(path: Path) -> bool:
    """Return whether a folder exists. A machine may cache for a minute that it did not, where another one has just put
    it on a shared file system; opening the folder above queries the server."""
    if path.exists():
        return True
    with suppress(OSError):
        os.close(os.open(path.parent, os.O_RDONLY))
    return path.exists()


def _read(stage: str, key: str, path: Path, weights: bool) -> Artifact:
    manifest = read_manifest(path)
    for name in sorted({*manifest.files, *(name for name, _ in _files(path))}):
        file = path / name
        if weights or not (file.is_file() and _state(file) == manifest.weights.get(name)):
            checked(path, name, manifest)
    return Artifact(stage, key, path, manifest.digest, manifest.meta, manifest.finished)


@lru_cache(maxsize=4096)
def _manifest(file: Path, modified_ns: int, size: int, inode: int) -> Manifest:
    content = read_sealed(file)
    return Manifest(**{field.name: content[field.name] for field in fields(Manifest)})


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and name != MANIFEST:
            yield name, path


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def file_digest(path: Path) -> str:
    """SHA-256 of a file; read again only when its time, size or inode has changed, since snapshots can be gigabytes."""
    state = path.stat()
    return _file_digest(path.absolute(), state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=4096)
def _file_digest(path: Path, modified_ns: int, size: int, inode: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(files: Mapping[str, str], meta: Mapping[str, Any]) -> str:
    identity = {name: value for name, value in files.items() if not name.startswith(VOLATILE)}
    return hashlib.sha256(canonical_json([identity, meta]).encode()).hexdigest()


def try_lock(path: Path) -> FileLock | None:
    """Hold a lock until it is released or this process ends; None where another process holds it.

    Raises `OSError` on a file system without locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock at this moment."""
    try:  # read-only and shared, so that two processes that look do not disturb each other
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
