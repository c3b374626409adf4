"""A content-addressed store of finished folders: key, lock, atomic publish, verify, collect.

    <root>/<stage>/<key>/            finished: files and, written last, manifest.json
    <root>/<stage>/.partial/<key>/   being built; survives a kill, so that a resumable stage can go on
    <root>/<stage>/.damaged/         set aside, never deleted behind the user's back
    <root>/<stage>/.kept/<key>/      what a stage needs to take up an artifact again that a cap has ended
    <root>/<stage>/.replaced/<key>/  for a moment, the artifact that a new one takes the place of
    <root>/<stage>/.locks/<key>      one builder at a time

A kill at any moment leaves a finished artifact or a partial one, never a half-published one: the manifest
is the last file written and `os.replace` the only way into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.config import canonical_json
from pipeline.layout import write_json

MANIFEST = "manifest.json"
VOLATILE = "log/"
"""Files below this folder (timings, cost) are kept and verified, but are no part of an artifact's identity."""


@dataclass(frozen=True)
class Artifact:
    """The finished output of one stage."""

    stage: str
    key: str
    path: Path
    digest: str
    """Hash of its files (`log/` left out) and of `meta`: what the stages below it depend on."""
    meta: dict[str, Any] = field(default_factory=dict)
    """What the stage returned."""


class Damaged(Exception):
    """An artifact whose files are not those of its manifest."""


class Store:
    """Artifacts under one root. `warn` is told of damage."""

    def __init__(self, root: Path, warn: Callable[[str], None] = lambda message: None) -> None:
        self.root = root
        self.warn = warn

    def find(self, stage: str, key: str) -> Artifact | None:
        """The verified artifact, or None. Changes nothing; raises `Damaged` when its files are not those of its manifest."""
        for path in (self.root / stage / key, self._replaced(stage, key)):
            if path.exists():
                return _read(stage, key, path)
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
        again and takes the place of the old one, which stays readable until then. If `make` leaves a folder `kept`, it is
        put beside the artifact, and put back before the artifact is built again.
        """
        locks = self.root / stage / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / key):
            self._restore(stage, key)
            found = self._find_or_set_aside(stage, key)
            if found and final(found):
                return found
            partial, aside = self.partial(stage, key), self.root / stage / ".kept" / key
            if not resumable:
                shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True, exist_ok=True)
            if kept and aside.exists() and not (partial / kept).exists():
                os.replace(aside, partial / kept)
            meta = make(partial)
            if kept and (partial / kept).exists():
                aside.parent.mkdir(exist_ok=True)
                os.replace(partial / kept, aside)
            files = dict(_hash_files(partial))
            manifest = {
                "stage": stage,
                "key": key,
                "identity": dict(identity),
                "files": files,
                "digest": _digest(files, meta),
                "meta": meta,
            }
            write_json(partial / MANIFEST, manifest)
            self._publish(stage, key, partial)
        built = self.find(stage, key)
        if built is None:
            raise RuntimeError(f"{stage} {key} vanished while it was published")
        return built

    def partial(self, stage: str, key: str) -> Path:
        """Where an artifact is being built."""
        return self.root / stage / ".partial" / key

    def identities(self, stage: str) -> Iterator[dict[str, Any]]:
        """What the finished artifacts of a stage were made from; newest first."""
        paths = [path for path in (self.root / stage).glob(f"*/{MANIFEST}") if not path.parent.name.startswith(".")]
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            try:
                yield json.loads(path.read_text("utf-8"))["identity"]
            except (OSError, ValueError, KeyError):
                continue

    def gc(self, keep: Collection[tuple[str, str]]) -> list[Path]:
        """Delete finished and damaged artifacts that are not in `keep` (stage, key); return what went."""
        doomed = [
            path
            for path in (*self.root.glob("*/*"), *self.root.glob("*/.damaged/*"))
            if path.is_dir() and (path.parent.name == ".damaged" or not path.name.startswith("."))
        ]
        gone = [path for path in doomed if (path.parent.name, path.name) not in keep]
        gone += [path for path in self.root.glob("*/.kept/*") if (path.parents[1].name, path.name) not in keep]
        for path in gone:
            shutil.rmtree(path)
        return gone

    def _publish(self, stage: str, key: str, partial: Path) -> None:
        """Put a complete folder into place. Where an older one is, a reader finds that one or this one at any moment."""
        path, old = self.root / stage / key, self._replaced(stage, key)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            old.parent.mkdir(exist_ok=True)
            os.replace(path, old)
        os.replace(partial, path)
        shutil.rmtree(old, ignore_errors=True)

    def _restore(self, stage: str, key: str) -> None:
        """Put an artifact back whose successor did not come: the process was killed between the two."""
        if self._replaced(stage, key).exists() and not (self.root / stage / key).exists():
            os.replace(self._replaced(stage, key), self.root / stage / key)

    def _replaced(self, stage: str, key: str) -> Path:
        return self.root / stage / ".replaced" / key

    def _find_or_set_aside(self, stage: str, key: str) -> Artifact | None:
        try:
            return self.find(stage, key)
        except Damaged as error:
            aside = self._set_aside(stage, key, self.root / stage / key)
            self.warn(f"{stage} {key} is damaged ({error}); set aside as {aside} and built again")
            return None

    def _set_aside(self, stage: str, key: str, path: Path) -> Path:
        folder = self.root / stage / ".damaged"
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while (aside := folder / f"{key}-{number}").exists():
            number += 1
        os.replace(path, aside)
        return aside


def _read(stage: str, key: str, path: Path) -> Artifact:
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        files, digest, meta = manifest["files"], manifest["digest"], manifest["meta"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"no readable {MANIFEST}: {type(error).__name__}") from None
    _verify(path, files, digest, meta)
    return Artifact(stage, key, path, digest, meta)


def _verify(path: Path, files: Mapping[str, str], digest: str, meta: Mapping[str, Any]) -> None:
    found = dict(_hash_files(path))
    for name in sorted(files.keys() | found.keys()):
        if name not in found:
            raise Damaged(f"{name} is missing")
        if name not in files:
            raise Damaged(f"{name} is not in the manifest")
        if files[name] != found[name]:
            raise Damaged(f"{name} has changed")
    if _digest(files, meta) != digest:
        raise Damaged(f"{MANIFEST} has changed")


def _hash_files(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and name != MANIFEST:
            yield name, file_digest(path)


def file_digest(path: Path) -> str:
    """SHA-256 of a file; read again only when its time or size has changed, since snapshots can be gigabytes."""
    state = path.stat()
    return _file_digest(path.absolute(), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _file_digest(path: Path, modified_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(files: Mapping[str, str], meta: Mapping[str, Any]) -> str:
    identity = {name: value for name, value in files.items() if not name.startswith(VOLATILE)}
    return hashlib.sha256(canonical_json([identity, meta]).encode()).hexdigest()
