"""One run: the study is begun, disturbed at a random moment, and gone on with until it is complete."""

from __future__ import annotations

import random
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.kinds import FAULTS, Fault
from faults.scene import Ending, Identity, Scene, copied, identity, series_differ

from pipeline.errors import FAULT

MOST_CALLS = 4
"""Times that the command is given until the study must be complete."""
SEEN_LATER = "what was damaged was seen by the next command"
SYNC = "`ablate sync` sends it later"
"""What the command says when MLflow could not take something."""
HARMLESS = {0, 130, -2, -9, -15}
"""Exit codes that need no word: done, or ended from outside."""


@dataclass(frozen=True)
class Whole:
    """The study that nothing disturbs, and where it begins."""

    folder: Path
    identity: Identity
    seconds: float
    sizes: tuple[int, int]


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    fault: str
    lost: str
    """What is missing or other in the end; empty for nothing."""
    told: str
    """What the command said of the fault, where it ended because of it."""
    calls: int
    seconds: float
    """From the fault, or from the next command where that one ended, until a trial wrote something."""
    at: float
    """Seconds after the begin."""


def whole(folder: Path) -> Whole:
    """Run the study undisturbed; runs begin where its reference and reward are there already."""
    begin = Scene(folder / "whole", random.Random(0))
    begin.folder.mkdir(parents=True)
    begin.start()
    _complete(begin.ended())
    for name in ("train", "evaluate"):
        shutil.rmtree(begin.root / "store" / name)
    shutil.rmtree(begin.root / "studies")
    for path in (*begin.root.glob("mlflow.db*"), begin.root / "mlartifacts"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    template = copied(begin.folder, folder / "template")
    there = _size(template / "out")
    before = time.monotonic()
    begin.start()
    _complete(begin.ended())
    seconds = time.monotonic() - before
    if wrong := list(series_differ(begin.root)):
        raise SystemExit(f"MLflow, undisturbed: {wrong}")
    return Whole(template, identity(begin.root), seconds, (there, _size(begin.root)))


def _complete(ending: Ending) -> None:
    if ending.code != 0:
        raise SystemExit(f"the undisturbed study ended with {ending.code}: {ending.said}")


def _size(root: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in root.rglob("*"))


def run(name: str, number: int, seed: int, undisturbed: Whole) -> Outcome:
    """Disturb once by the fault `name`; what happens when depends on the seed and the number."""
    dice, fault = random.Random(f"{seed}/{name}/{number}"), FAULTS[name]
    with tempfile.TemporaryDirectory(prefix="ablate-faults-") as place:
        folder = Path(place) / "case"
        with _begun(folder, undisturbed, fault):
            scene = Scene(folder, dice, sizes=undisturbed.sizes)
            try:
                return _disturbed(scene, name, fault, undisturbed)
            finally:
                with scene.around:
                    if scene.process is not None and scene.process.poll() is None:
                        scene.kill_all()


@contextmanager
def _begun(folder: Path, undisturbed: Whole, fault: Fault) -> Iterator[None]:
    """The folder of a run; its output root is a disk of its own where the fault needs that."""
    if not fault.own_disk:
        copied(undisturbed.folder, folder)
        yield
        return
    root = folder / "out"
    root.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "ablate-faults", str(root)], check=True)
    try:
        shutil.copytree(undisturbed.folder, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def _disturbed(scene: Scene, name: str, fault: Fault, undisturbed: Whole) -> Outcome:
    fault.before(scene)
    process, at = scene.start(), scene.dice.uniform(0.0, fault.longer * undisturbed.seconds)
    try:
        process.wait(at)
    except subprocess.TimeoutExpired:
        fault.harm(scene)
    seconds = scene.seconds_until_it_goes_on(scene.marks())
    ending, told, calls = scene.ended(), "", 1
    ended_by_it = ending.code != 0
    while True:
        if wrong := _unexplained(ending, fault.crash, fault.word):
            return Outcome(name, wrong, told, calls, seconds, at)
        if ending.code not in HARMLESS:
            told = _last_line(ending.said)
        unseen = ending.code == 0 and fault.may_come_too_late and _wrong(scene, undisturbed)
        told = SEEN_LATER if unseen else told
        if calls == MOST_CALLS or (ending.code == 0 and not unseen):
            break
        fault.mend(scene)
        marks = scene.marks()
        scene.start()
        again = scene.seconds_until_it_goes_on(marks)
        seconds = again if ended_by_it else seconds
        ending, calls = scene.ended(), calls + 1
    if ending.code == 0 and SYNC in ending.said:
        fault.mend(scene)
        scene.start("sync")
        ending, told = scene.ended(), SYNC
    return Outcome(name, _lost(scene, ending, undisturbed), told, calls, seconds, at)


def _unexplained(ending: Ending, crash: bool = False, word: str = "") -> str:
    """What no end of a command may look like, but for a SIGSEGV that comes with the fault itself (`Fault.crash`)."""
    if ending.code is None:
        return f"it hung: {_last_line(ending.said)}"
    if "Traceback (most recent call last)" in ending.said:
        return f"a traceback: {_last_line(ending.said)}"
    if ending.code not in HARMLESS | {2, 4} and not (crash and ending.code == -signal.SIGSEGV):
        return f"exit code {ending.code}: {_last_line(ending.said)}"
    if ending.code == FAULT and word not in _last_line(ending.said):
        return f"another word than '{word}': {_last_line(ending.said)}"
    return ""


def _lost(scene: Scene, ending: Ending, undisturbed: Whole) -> str:
    """What differs from the undisturbed study."""
    if ending.code != 0:
        return f"not complete after {MOST_CALLS} commands: {_last_line(ending.said)}"
    return _wrong(scene, undisturbed)


def _wrong(scene: Scene, undisturbed: Whole) -> str:
    """Files, records and series that are not those of the undisturbed study."""
    if differing := _differing(scene, undisturbed):
        return f"{len(differing)} files differ: {', '.join(differing[:3])}"
    try:
        return "; ".join(series_differ(scene.root))
    except sqlite3.Error as error:
        return f"MLflow's database: {error}"


def _differing(scene: Scene, undisturbed: Whole) -> list[str]:
    """Files and records that are missing, other, or too many."""
    found, wanted = identity(scene.root), undisturbed.identity
    return sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))


def _last_line(said: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
