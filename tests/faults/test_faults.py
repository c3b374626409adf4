"""Studies that are disturbed once at a random moment, and gone on with by the same command until they are complete: in
the end every file of the results must be that of a study which nothing disturbed, and MLflow must hold every record
once. And a loss is seen where there is one."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from faults.kinds import FAULTS, Fault
from faults.scene import Identity, Scene, identity, series_differ
from ray_nodes import TooBusy

from pipeline.errors import FAULT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
MOST_CALLS = 4
"""Times that the command is given until the study must be complete."""
SEEN_LATER = "what was damaged was seen by the next command"
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


@dataclass
class Outcome:
    """The result of a run: what is missing or other in the end, what the command reported where it ended because of the
    fault, and how often it was given."""

    lost: str = ""
    told: str = ""
    calls: int = 1


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
    yield Whole(place / "template", identity(one.root), seconds, (there, _size(one.root)))
    shutil.rmtree(place)


def _size(root: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in root.rglob("*"))


def disturbed(name: str, number: int, seed: int, whole: Whole, folder: Path) -> Outcome:
    """Disturb once by the fault `name`; what happens when depends on the seed and the number."""
    fault = FAULTS[name]
    with _begun(folder, whole, fault):
        scene = Scene(folder, random.Random(f"{seed}/{name}/{number}"), sizes=whole.sizes)
        try:
            return _gone_on_with(scene, fault, whole)
        finally:
            with scene.around:
                if scene.process is not None and scene.process.poll() is None:
                    scene.kill_all()


@contextmanager
def _begun(folder: Path, whole: Whole, fault: Fault) -> Iterator[None]:
    """The folder of a run; its output root is a disk of its own where the fault needs that."""
    root = folder / "out"
    root.mkdir(parents=True)
    if fault.own_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "ablate-faults", str(root)], check=True)
    try:
        shutil.copytree(whole.folder, folder, symlinks=True, dirs_exist_ok=True)
        yield
    finally:
        if fault.own_disk:
            subprocess.run(["umount", "-l", str(root)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def _gone_on_with(scene: Scene, fault: Fault, whole: Whole) -> Outcome:
    fault.before(scene)
    outcome, process = Outcome(), scene.start()
    try:
        process.wait(scene.dice.uniform(0.0, fault.longer * whole.seconds))
    except subprocess.TimeoutExpired:
        fault.harm(scene)
    code, said = scene.ended()
    while True:
        if wrong := unexplained(code, said, fault.word):
            return replace(outcome, lost=wrong)
        if code not in HARMLESS:
            outcome.told = _last_line(said)
        unseen = code == 0 and fault.may_come_too_late and bool(_wrong(scene, whole))
        outcome.told = SEEN_LATER if unseen else outcome.told
        if outcome.calls == MOST_CALLS or (code == 0 and not unseen):
            break
        fault.mend(scene)
        scene.start()
        code, said = scene.ended()
        outcome.calls += 1
    if code == 0 and SYNC in said:
        fault.mend(scene)
        scene.start("sync")
        (code, said), outcome.told = scene.ended(), SYNC
    outcome.lost = _wrong(scene, whole) if code == 0 else f"not complete after {outcome.calls}: {_last_line(said)}"
    return outcome


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
        names = metafunc.config.getoption("fault") or list(FAULTS)
        runs = metafunc.config.getoption("runs") or len(names)
        metafunc.parametrize(("name", "number"), [(names[n % len(names)], n) for n in range(runs)])


def test_nothing_is_lost(
    name: str, number: int, whole: Whole, tmp_path: Path, pytestconfig: pytest.Config,
    record_property: pytest.RecordProperty,
) -> None:  # fmt: skip
    if why := FAULTS[name].lacks():
        pytest.skip(why)
    try:
        outcome = disturbed(name, number, pytestconfig.getoption("seed") or 0, whole, tmp_path / "case")
    except TooBusy as busy:
        pytest.skip(str(busy))
    for key, value in {"fault": name, "lost": bool(outcome.lost), "calls": outcome.calls}.items():
        record_property(key, value)
    assert not outcome.lost, outcome.told


def test_a_loss_is_seen(whole: Whole, tmp_path: Path) -> None:
    other = replace(whole, identity=whole.identity | {"weak__seed0.json": "0"})
    assert "weak__seed0.json" in disturbed("command killed", 0, 1, other, tmp_path / "case").lost
    root = tmp_path / "out"
    shutil.copytree(whole.folder.parent / "whole" / "out", root)
    assert identity(root) == whole.identity
    model = next(root.glob("store/train/*/policy/model.safetensors"))
    *content, last = model.read_bytes()
    model.write_bytes(bytes([*content, last ^ 1]))
    (record,) = root.glob("studies/small/smoke/trials/none*.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"steps": 191}))
    differing = {name for name, digest in identity(root).items() if whole.identity[name] != digest}
    assert differing == {model.relative_to(root).as_posix(), record.name}
