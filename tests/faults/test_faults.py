from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from helpers import family, flip_bit, kill, mind_interrupts, store_digests
from mlflow_servers import Server
from series import Series, compared, shown, written

from pipeline.errors import FAULT, INTERRUPTED, USER_ERROR, Damaged
from pipeline.run.layout import Layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
STUDY = Path(__file__).with_name("small.yaml")
COMMAND = """
import sys
import ablate
from studies.console import cli
cli.report_with(lambda study, folder: folder.study_file)
try:
    ablate.app()
except KeyboardInterrupt:
    sys.exit(130)
"""
"""``ablate`` without the report, which only reads what is compared here."""
SETTINGS = ("--set", "train.steps=192", "--set", "runtime.checkpoint_updates=2", "--jobs", "2")
TESTS = Path(__file__).resolve().parent.parent
MOST_CALLS, LONGEST = 4, 1200.0
"""Times that the command is given until the study must be complete; seconds after which it counts as hanging."""
ENDED = {0, INTERRUPTED, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM, USER_ERROR, FAULT}
"""Exit codes of commands that are done, were ended from outside, or have reported why they cannot go on."""


@dataclass
class Scene:
    """A folder with the study, its output root, and the command that runs there; and what nothing disturbed left."""

    folder: Path
    dice: random.Random
    around: ExitStack
    """Commands, daemons and disks that end with the run."""
    identity: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    sizes: tuple[int, int] = (0, 0)
    """Bytes of the output root before and after the study."""
    name: str = "small"
    environment: dict[str, str] = field(default_factory=dict)
    server: Server | None = None
    """MLflow, where the fault has started it before the command, and kills it."""

    @property
    def root(self) -> Path:
        return self.folder / "out"

    def start(self, verb: str = "study") -> None:
        settings = SETTINGS if verb == "study" else ()
        shutil.copy(STUDY, self.folder / f"{self.name}.yaml")
        paths = {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))), "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        self.log = self.folder / f"{self.name}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, verb, f"{self.name}.yaml", "--out", str(self.root), *settings],
                cwd=self.folder, env=environment | paths | self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=mind_interrupts,
            )  # fmt: skip
        self.around.callback(self.kill_all)

    def ended(self) -> tuple[int, str]:
        code = self.process.wait(LONGEST)
        said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.log.read_text("utf-8", "replace"))
        last = said.strip().rpartition("\n")[2]
        assert "Traceback (most recent call last)" not in said, said[-4000:]
        assert code in ENDED, f"exit code {code}: {last}"
        return code, said

    def kill_all(self) -> None:
        if self.process.poll() is None:
            kill(processes := family(self.process.pid))
            psutil.wait_procs(processes[1:], 5)
            self.process.wait()


TIMES = {"cost": True, "environment": True, "finished": True, "stages": {"__all__": {"finished"}}}
"""Fields of a record that depend on time."""
RUNS = """
select run_uuid, m.key, step, m.value, is_nan from tags s join tags t using (run_uuid) join runs using (run_uuid)
left join metrics m using (run_uuid) where lifecycle_stage = 'active' and s.key = 'study' and s.value = 'small'
and t.key = 'identity' and t.value = ?"""
"""Rows of all runs that MLflow has of a trial."""


def lost(root: Path, wanted: dict[str, str]) -> Iterator[str]:
    """Yield the files and records that are missing, too many or other than those of the undisturbed study, and the
    series of MLflow that are not those of ``metrics.jsonl``."""
    found = identity(root)
    yield from sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    try:
        with sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True) as database:
            for record in Layout(root).study("small", "smoke").records():
                key, name = record.stages["train"].key, f"{record.arm} seed {record.seed}"
                rows = database.execute(RUNS, [key]).fetchall()
                if len({run for run, *_ in rows}) != 1:
                    yield f"{name} has not one run"
                sent = Series((metric, step, shown(math.nan if nan else value)) for _, metric, step, value, nan in rows)
                yield from compared(name, written(root / "store" / "train" / key / "metrics.jsonl"), sent)
    except (sqlite3.Error, OSError, Damaged) as error:
        yield f"{type(error).__name__}: {error}"


def identity(root: Path) -> dict[str, str]:
    """Digests of the store, and the records' content but for what depends on time."""
    found = store_digests(root)
    with suppress(Damaged):
        for record in Layout(root).study("small", "smoke").records():
            found[f"{record.arm} {record.seed}"] = record.model_dump_json(exclude=TIMES)
    return found


def _nothing(scene: Scene) -> None: ...


class Fault(NamedTuple):
    harm: Callable[[Scene], object] = _nothing
    """Done at a random moment, while the command runs."""
    mend: Callable[[Scene], object] = _nothing
    """Done before the same command is given again."""
    before: Callable[[Scene], object] = _nothing
    """Done before the command is given first."""
    damages: bool = False
    """True where files are damaged, maybe after the command has last looked there; then the next command meets it. No
    other fault may leave a file that is set aside as damaged."""


def _signal(number: signal.Signals) -> Fault:
    return Fault(lambda scene: scene.process.send_signal(number))


def _pause(scene: Scene) -> None:
    """Seconds for which processes are stopped or daemons are missing."""
    time.sleep(scene.dice.uniform(1.0, 12.0))


def _stop(scene: Scene, processes: Iterable[psutil.Process]) -> None:
    for act in (psutil.Process.suspend, psutil.Process.resume):
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                act(one)
        _pause(scene) if act is psutil.Process.suspend else None


def _kill_one(scene: Scene) -> None:
    if children := family(scene.process.pid)[1:]:
        kill([scene.dice.choice(children)])


def _damaged(change: Callable[[Path, int], object]) -> Fault:
    def harm(scene: Scene) -> None:
        files = sorted(path for path in scene.root.rglob("*") if path.is_file() and not path.is_symlink())
        with suppress(FileNotFoundError, IndexError):
            path = scene.dice.choice([one for one in files if ".lock" not in one.as_posix() and one.stat().st_size])
            change(path, scene.dice.randrange(path.stat().st_size))

    return Fault(harm, damages=True)


def _remove(scene: Scene) -> None:
    if folders := sorted(path for path in scene.root.rglob("*") if path.is_dir()):
        shutil.rmtree(scene.dice.choice(folders), ignore_errors=True)


def _own_disk(scene: Scene) -> None:
    there = scene.root.rename(scene.folder / "there")
    scene.root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "ablate-faults", str(scene.root)]).returncode:
        pytest.skip("no small disk can be mounted here, which takes root")
    scene.around.callback(subprocess.run, ["umount", "-l", str(scene.root)], check=True)
    shutil.copytree(there, scene.root, symlinks=True, dirs_exist_ok=True)


def _remount(scene: Scene, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(scene.root)], check=True)


def _little_room(scene: Scene) -> None:
    """Less than the study needs at most, and more than is there already."""
    there, needed = scene.sizes
    _own_disk(scene)
    _remount(scene, f"size={int(there + scene.dice.random() * (needed - there)) // 1024 + 64}k")


def _read_only(scene: Scene) -> None:
    """The command finds it so: none may force it below programs that have files open."""
    scene.kill_all()
    _remount(scene, "ro")
    scene.start()


def _another(name: str) -> Fault:
    """A second command beside the first, which must end well."""

    def harm(scene: Scene) -> None:
        second = replace(scene, name=name)
        second.start()
        assert second.ended()[0] == 0, f"the second command: {second.log.read_text()[-500:]}"

    return Fault(harm)


def _own_mlflow(scene: Scene) -> None:
    """Its database is that of a study without a server, so that the same comparison reads it."""
    server = Server(f"sqlite:///{scene.root / 'mlflow.db'}", scene.root / "mlartifacts", scene.folder / "mlflow.log")
    scene.around.callback(server.kill)
    scene.server, scene.environment["MLFLOW_TRACKING_URI"] = server, server.uri


def _kill_mlflow(scene: Scene) -> None:
    assert scene.server is not None
    scene.server.kill()
    _pause(scene)
    scene.server.start()


FAULTS: dict[str, Fault] = {
    "command killed": _signal(signal.SIGKILL),
    "child killed": Fault(_kill_one),
    "all killed": Fault(Scene.kill_all),
    "Ctrl-C": _signal(signal.SIGINT),
    "terminated": _signal(signal.SIGTERM),
    "command stopped": Fault(lambda scene: _stop(scene, family(scene.process.pid)[:1])),
    "children stopped": Fault(lambda scene: _stop(scene, family(scene.process.pid)[1:])),
    "file truncated": _damaged(os.truncate),
    "bit flipped": _damaged(flip_bit),
    "folder removed": Fault(_remove, damages=True),
    "disk full": Fault(_nothing, lambda scene: _remount(scene, "size=1g"), _little_room),
    "read-only": Fault(_read_only, lambda scene: _remount(scene, "rw"), _own_disk),
    "two commands": _another("small"),
    "two studies": _another("other"),
    "MLflow killed": Fault(_kill_mlflow, before=_own_mlflow),
}
OFTEN = ("bit flipped", "disk full", "read-only", "two commands", "MLflow killed")
"""The faults of `make test-slow`; `make faults` does all. Tests of executors kill SLURM's daemons and Ray's."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, smoke_layout: Layout) -> Iterator[Scene]:
    def size() -> int:
        return sum(-(-path.stat().st_size // 4096) * 4096 for path in scene.root.rglob("*"))

    place = tmp_path_factory.mktemp("faults")
    with ExitStack() as around:
        scene = Scene(place / "whole", random.Random(0), around)
        scene.folder.mkdir()
        own = shutil.ignore_patterns("train", "evaluate")
        shutil.copytree(smoke_layout.store, scene.root / "store", symlinks=True, ignore=own)
        shutil.copytree(scene.folder, place / "template", symlinks=True)
        there, before = size(), time.monotonic()
        scene.start()
        assert scene.ended()[0] == 0
        scene.seconds, scene.sizes, scene.identity = time.monotonic() - before, (there, size()), identity(scene.root)
        assert len(scene.identity) > 20
        assert not list(lost(scene.root, scene.identity))
    yield replace(scene, folder=place / "template")
    shutil.rmtree(place)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runs, chosen = metafunc.config.getoption("runs"), metafunc.config.getoption("fault")
    names = chosen or list(FAULTS if runs else OFTEN)
    metafunc.parametrize(("name", "number"), [(names[n % len(names)], n) for n in range(runs or len(names))])


def test_nothing_is_lost(name: str, number: int, whole: Scene, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    fault, dice = FAULTS[name], random.Random(f"{pytestconfig.getoption('seed') or 0}/{name}/{number}")
    with ExitStack() as around:
        folder = Path(shutil.copytree(whole.folder, tmp_path / "case", symlinks=True))
        scene = replace(whole, folder=folder, dice=dice, around=around, environment={})
        fault.before(scene)
        scene.start()
        try:
            scene.process.wait(dice.uniform(0.0, scene.seconds))
        except subprocess.TimeoutExpired:
            fault.harm(scene)
        code, said = scene.ended()
        for _ in range(MOST_CALLS - 1):
            if code == 0 and not (fault.damages and any(lost(scene.root, scene.identity))):
                break
            fault.mend(scene)
            scene.start()
            code, said = scene.ended()
        assert code == 0
        if "`ablate sync` sends it later" in said:
            fault.mend(scene)
            scene.start("sync")
            scene.ended()
        assert not list(lost(scene.root, scene.identity))
        assert fault.damages or not list(scene.root.rglob(".damaged"))
