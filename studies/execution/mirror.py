"""A copy of an output root on a disk that outlives the machine, such as a mounted Google Drive.

Locks, folders that are renamed in one step, and SQLite need a real disk. A copy needs only files that can be written,
renamed and deleted. So a study runs on the machine's own disk, and its files are copied while it runs: finished
stages, records, reports, and of a running trial the newest checkpoint. Databases and locks are left out, since they
are made again. Each file is copied in one step, and none before those that it refers to. ``index.json`` keeps size and
time of what was copied, so that the next session knows what has changed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

from pipeline.errors import UserError
from pipeline.run.store import MANIFEST

INDEX = "index.json"
EVERY_S = 60.0
COPIED = ("store", "studies")
PARTIAL = ".partial"
"""The one hidden folder that is copied: stages that are being built."""
LEFT_OUT = frozenset({"mlflow", "jobs"})
"""Of a study: what MLflow was told goes with its database, and the next session tells it again; the processes of jobs
end with the machine."""
UNKNOWN = [-1, -1]
COPYING, RESTORING = ".copying", ".restoring"
"""Ends of the hidden names under which files are copied and stages are brought back."""
FULL = (errno.ENOSPC, errno.EDQUOT)

State = list[int]
"""Size and modification time [ns] of a file."""


class Mirror:
    """The copy of `root` in `folder`; `warn` is told once of each fault of the disk."""

    def __init__(self, root: Path, folder: Path, warn: Callable[[str], None]) -> None:
        self.root, self.folder, self.warn = root, folder, warn
        self.index: dict[str, State] = {}
        """Of each file of the copy, the state of the original when it was copied."""
        self._warned: set[str] = set()

    def restore(self) -> int:
        """Copy back what is missing here, and return how many files that were.

        A stage is taken as a whole or not at all, also where this is cut. Raises `UserError` where the copy cannot be
        read or written.
        """
        try:
            self.folder.mkdir(exist_ok=True)  # without its parents: a drive that is not mounted is not made here
            for left in list(_unfinished(self.folder)):
                _delete(left)
            known, names = _read_index(self.folder / INDEX), set(_files(self.folder))
            self.index = {name: known.get(name, UNKNOWN) for name in names}
            here = {_unit(name) for name in names if (self.root / _unit(name)).exists()}
            missing = sorted(name for name in names if _unit(name) not in here and _is_whole(_unit(name), names))
            for unit, of_unit in groupby(sorted(missing, key=_unit), key=_unit):
                self._bring(unit, list(of_unit))
            for name in missing:
                self.index[name] = _state(self.root / name)
        except OSError as error:
            raise UserError(f"--mirror {self.folder}: {error.strerror or error}") from None
        return len(missing)

    def _bring(self, unit: str, names: list[str]) -> None:
        """Copy a unit back beside its place, and then put it there in one step: what lies there counts as whole, and
        what a stage here lacks is deleted from the copy."""
        place = self.root / unit
        beside = place.with_name(f".{place.name}{RESTORING}")
        _remove(beside)
        for name in names:
            _copy(self.folder / name, beside / Path(name).relative_to(unit), self.index[name])
        try:
            os.replace(beside, place)
        except OSError:
            _remove(beside)
            if not place.exists():  # else another driver was faster
                raise

    def save(self) -> int:
        """Copy what is new or has changed, delete from the copy what is gone, and return how many files were copied.

        What is gone goes last, so that a cut leaves the checkpoint before; on a full disk it goes first. A fault of the
        disk is told, and the next call tries again: a study does not end because a copy failed.
        """
        copied = deleted = 0
        try:
            if not self.folder.is_dir():
                raise OSError(errno.ENODEV, "the folder is no longer there")
            found = set(_files(self.root))
            try:
                copied += self._copy_new(found)
            except OSError as error:
                if error.errno not in FULL or not (deleted := self._delete_gone(found)):
                    raise
                copied += self._copy_new(found)
            deleted += self._delete_gone(found)
            if copied or deleted:
                beside = self.folder / f".{INDEX}"
                beside.write_text(json.dumps(self.index, sort_keys=True), encoding="utf-8")
                os.replace(beside, self.folder / INDEX)
        except OSError as error:
            said = f"the copy in {self.folder} is behind: {error.strerror or error}"
            if said not in self._warned:
                self._warned.add(said)
                self.warn(said)
        return copied

    def _copy_new(self, found: set[str]) -> int:
        copied = 0
        for name in sorted(found, key=_order):
            with suppress(FileNotFoundError):  # published or deleted since it was listed
                state = _state(self.root / name)
                if self.index.get(name) != state:
                    _copy(self.root / name, self.folder / name, state)
                    self.index[name] = state
                    copied += 1
        return copied

    def _delete_gone(self, found: set[str]) -> int:
        gone = self.index.keys() - found
        for name in gone:
            _delete(self.folder / name)
            del self.index[name]
        return len(gone)


@contextmanager
def mirrored(root: Path, folder: Path | None, tell: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Copy back what `folder` has, then copy there what changes under `root`, every `every_s` seconds and at the end.

    Without a folder nothing is copied. Raises `UserError` where the folder cannot be read or written.
    """
    if folder is None:
        yield
        return
    folder = folder.expanduser().absolute()
    at, real = folder.resolve(), root.resolve()
    if at.is_relative_to(real) or real.is_relative_to(at):
        raise UserError(f"--mirror {folder}: the copy and the output root {root} must not lie within each other")
    mirror, ended = Mirror(root, folder, tell), threading.Event()
    if restored := mirror.restore():
        tell(f"{restored} files copied back from {folder}")

    def save_until_ended() -> None:
        while not ended.wait(every_s):
            mirror.save()

    saver = threading.Thread(target=save_until_ended, name="mirror", daemon=True)
    saver.start()
    try:
        yield
    finally:
        ended.set()
        saver.join()
        mirror.save()


def _files(root: Path) -> Iterator[str]:
    """Files that are copied, as paths below `root`; of the checkpoints in a folder the newest."""
    for part in COPIED:
        for at, folders, names in os.walk(root / part):
            left_out = LEFT_OUT if _is_study(Path(at).relative_to(root)) else ()
            folders[:] = [name for name in folders if name not in left_out and (name == PARTIAL or name[0] != ".")]
            checkpoints = sorted(filter(_is_checkpoint, names))
            for name in names:
                if name not in checkpoints[:-1] and not name.startswith(".") and not name.endswith((".lock", ".db")):
                    yield (Path(at) / name).relative_to(root).as_posix()


def _is_study(place: Path) -> bool:
    return len(place.parts) == 3 and place.parts[0] == COPIED[1]


def _unit(name: str) -> str:
    """What is copied back as a whole: a stage, finished or being built; else the file itself.

    >>> _unit("store/train/.partial/ab/metrics.jsonl"), _unit("store/train/ab/manifest.json"), _unit("studies/a/b/c")
    ('store/train/.partial/ab', 'store/train/ab', 'studies/a/b/c')
    """
    parts = name.split("/")
    if parts[0] != COPIED[0]:
        return name
    return "/".join(parts[: 4 if parts[2] == PARTIAL else 3])


def _is_whole(unit: str, names: set[str]) -> bool:
    """Whether a copy got as far as the manifest of a finished stage, which is copied last."""
    return not unit.startswith(f"{COPIED[0]}/") or f"/{PARTIAL}/" in unit or f"{unit}/{MANIFEST}" in names


def _order(name: str) -> tuple[bool, bool, str]:
    """The store before the studies, whose records name it; manifests and checkpoints after what they speak of."""
    last = Path(name).name
    return not name.startswith(COPIED[0]), last == MANIFEST or _is_checkpoint(last), name


def _is_checkpoint(name: str) -> bool:
    return name.startswith("update_") and name.endswith(".pt")


def _read_index(path: Path) -> dict[str, State]:
    """What was written there; nothing where it cannot be understood, since all is then copied again."""
    with suppress(FileNotFoundError, ValueError, TypeError, AttributeError):
        content = json.loads(path.read_text("utf-8"))
        return {name: [int(size), int(time)] for name, (size, time) in content.items()}
    return {}


def _state(path: Path) -> State:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _copy(source: Path, target: Path, state: State) -> None:
    """Copy a file in one step, with the time of `state`, by which the store knows weights again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}{COPYING}")
    try:
        shutil.copyfile(source, beside)
        if state != UNKNOWN:
            with suppress(OSError):  # a drive may keep times of its own
                os.utime(beside, ns=(state[1], state[1]))
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _unfinished(root: Path) -> Iterator[Path]:
    """What cut copies have left: files as large as a checkpoint, under names that may never come again."""
    for part in COPIED:
        for at, _, names in os.walk(root / part):
            yield from (Path(at) / name for name in names if name[0] == "." and name.endswith(COPYING))


def _remove(path: Path) -> None:
    """A file or a folder, where there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _delete(path: Path) -> None:
    """Empty a file before it is deleted: a drive may keep deleted files in a bin that counts."""
    with suppress(FileNotFoundError):
        os.truncate(path, 0)
        path.unlink()
