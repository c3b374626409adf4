"""Studies that are disturbed once at a random moment, and gone on with by the same command until they are complete: in
the end every file of the results must be that of a study which nothing disturbed, and MLflow must hold every record
once."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.scene import FAULTS, OFTEN, Fault, Identity, Scene, identity, series_differ
from ray_nodes import TooBusy

from pipeline.errors import FAULT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
MOST_CALLS = 4
"""Times that the command is given until the study must be complete."""
SYNC = "`ablate sync` sends it later"
"""Words of the command when MLflow could not take something."""
HARMLESS = {0, 130, -2, -9, -15}
"""Exit codes that need no word: done, or ended from outside."""


@dataclass(frozen=True)
class Whole:
    """The study that nothing disturbs, and the folder where runs begin: reference and reward are there already."""

    folder: Path
    identity: Identity
    seconds: float
    sizes: tuple[int, int]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    place = tmp_path_factory.mktemp("faults")
    one = Scene(place / "whole", random.Random(0))
    one.folder.mkdir(parents=True)
    one.start()
    assert one.ended()[0] == 0
    for path in (one.root / "store" / "train", one.root / "store" / "evaluate", one.root / "studies"):
        shutil.rmtree(path)
    for path in (*one.root.glob("mlflow.db*"), one.root / "mlartifacts"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(one.folder, place / "template", symlinks=True)
    there, before = _size(one.root), time.monotonic()
    one.start()
    assert one.ended()[0] == 0
    seconds = time.monotonic() - before
    assert not list(series_differ(one.root))
    assert len(identity(one.root)) > 20
    yield Whole(place / "template", identity(one.root), seconds, (there, _size(one.root)))
    shutil.rmtree(place)


def _size(root: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in root.rglob("*"))


@contextmanager
def _begun(folder: Path, whole: Whole, fault: Fault, dice: random.Random) -> Iterator[Scene]:
    """The folder of a run; its output root is a disk of its own where the fault needs that."""
    scene = Scene(folder, dice, sizes=whole.sizes)
    scene.root.mkdir(parents=True)
    if fault.own_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "ablate-faults", str(scene.root)], check=True)
    try:
        shutil.copytree(whole.folder, folder, symlinks=True, dirs_exist_ok=True)
        with scene.around:
            yield scene
            if scene.process is not None and scene.process.poll() is None:
                scene.kill_all()
    finally:
        if fault.own_disk:
            subprocess.run(["umount", "-l", str(scene.root)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def lost(scene: Scene, fault: Fault, whole: Whole) -> str:
    """Disturb the command once, and give it again until it is done: what is missing or other in the end, empty where
    nothing is."""
    fault.before(scene)
    process, calls = scene.start(), 1
    try:
        process.wait(scene.dice.uniform(0.0, fault.longer * whole.seconds))
    except subprocess.TimeoutExpired:
        fault.harm(scene)
    code, said = scene.ended()
    while not (wrong := unexplained(code, said, fault.word)) and calls < MOST_CALLS:
        if code == 0 and not (fault.may_come_too_late and _wrong(scene, whole)):
            break
        fault.mend(scene)
        scene.start()
        code, said = scene.ended()
        calls += 1
    if wrong or code:
        return wrong or f"not complete after {calls}: {_last_line(said)}"
    if SYNC in said:
        fault.mend(scene)
        scene.start("sync")
        scene.ended()
    return _wrong(scene, whole)


def unexplained(code: int | None, said: str, word: str = "") -> str:
    """Return the fault in the end of a command; empty where it has none."""
    last = _last_line(said)
    if code is None:
        return f"it hung: {last}"
    if "Traceback (most recent call last)" in said:
        return f"a traceback: {last}"
    if code not in HARMLESS | {2, 4}:
        return f"exit code {code}: {last}"
    return f"another word than '{word}': {last}" if code == FAULT and word not in last else ""


def _wrong(scene: Scene, whole: Whole) -> str:
    """Files, records and series that are missing, other than those of the undisturbed study, or too many."""
    found, wanted = identity(scene.root), whole.identity
    if differing := sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path)):
        return f"{len(differing)} files differ: {', '.join(differing[:3])}"
    try:
        return "; ".join(series_differ(scene.root))
    except sqlite3.Error as error:
        return f"MLflow's database: {error}"


def _last_line(said: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    return next((line.strip()[:300] for line in reversed(plain.splitlines()) if line.strip()), "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        runs, chosen = metafunc.config.getoption("runs"), metafunc.config.getoption("fault")
        names = chosen or list(FAULTS if runs else OFTEN)
        metafunc.parametrize(("name", "number"), [(names[n % len(names)], n) for n in range(runs or len(names))])


def test_nothing_is_lost(name: str, number: int, whole: Whole, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    fault, seed = FAULTS[name], pytestconfig.getoption("seed") or 0
    if why := fault.lacks():
        pytest.skip(why)
    try:
        with _begun(tmp_path / "case", whole, fault, random.Random(f"{seed}/{name}/{number}")) as scene:
            assert not lost(scene, fault, whole)
    except TooBusy as busy:
        pytest.skip(str(busy))
