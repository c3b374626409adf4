"""A small study that is run by its command, disturbed, and gone on with; what must be the same in the end; and the
faults, by name. Each run has daemons of its own."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
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
from typing import Any

import psutil
import ray_nodes
from helpers import mind_interrupts
from mlflow_servers import Server
from series import Series, compared, shown, written

TESTS = Path(__file__).resolve().parent.parent
STUDY = """\
question: Does the weight of the KL penalty matter?
profile: smoke
baseline: none
seeds: [0]
arms:
  none: {}
  weak: {kl.beta: 0.01}
"""
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
LONGEST = 1200.0
"""Seconds after which a command counts as hanging."""
Identity = dict[str, str]


@dataclass
class Scene:
    """A folder with the study, its output root, and the command that runs there."""

    folder: Path
    dice: random.Random
    name: str = "small"
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    sizes: tuple[int, int] = (0, 0)
    """Bytes of the output root before and after the study, where nothing disturbs it."""
    executor: str = "processes"
    around: ExitStack = field(default_factory=ExitStack)
    """Daemons and threads that end with the run."""
    daemons: Any = None
    """Daemons that the fault has started before the command, and kills."""

    @property
    def root(self) -> Path:
        return self.folder / "out"

    def start(self, verb: str = "study") -> subprocess.Popen[bytes]:
        """Give the command, in a session of its own."""
        settings = (*SETTINGS, "--executor", self.executor) if verb == "study" else ()
        (self.folder / f"{self.name}.yaml").write_text(STUDY)
        paths = {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))), "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        self.log = self.folder / f"{self.name}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, verb, f"{self.name}.yaml", "--out", str(self.root), *settings],
                cwd=self.folder, env=environment | paths | self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=mind_interrupts,
            )  # fmt: skip
        return self.process

    def ended(self) -> tuple[int | None, str]:
        """Exit code of the command (None: it hung), and its output."""
        try:
            code: int | None = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.kill_all()
            code = None
        return code, self.log.read_text("utf-8", "replace")[-4000:]

    def family(self) -> list[psutil.Process]:
        """The processes that the command has started, the eldest first."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill_all(self) -> None:
        """SIGKILL for the command and all that it started."""
        family = self.family()
        self.process.kill()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, 5)
        self.process.wait()

    def files(self) -> list[Path]:
        """Return the files that it has written, but for locks."""
        found = (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return sorted(path for path in found if ".lock" not in path.as_posix())


def identity(root: Path) -> Identity:
    """Digest of every file of the store and of the records' content, but for what depends on time (``log/``, `cost`),
    the manifests, which list it, and what was set aside as damaged."""
    found = {}
    for path in sorted((root / "store").rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not {"log", ".locks", ".damaged"} & {*parts} and path.name != "manifest.json":
            found["/".join(parts)] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted((root / "studies" / "small").rglob("trials/*.json")):
        record = json.loads(path.read_text())
        kept = {name: record[name] for name in ("arm", "seed", "config", "status", "steps", "stages", "summary")}
        kept["stages"] = {name: stage | {"finished": None} for name, stage in kept["stages"].items()}
        found[path.name] = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return found


def series_differ(root: Path) -> Iterator[str]:
    """Yield where the series in MLflow's database are not those of ``metrics.jsonl``: missing, double or other."""
    with sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True) as database:
        for path in sorted((root / "studies" / "small").rglob("trials/*.json")):
            key = json.loads(path.read_text())["stages"]["train"]["key"]
            runs = database.execute(
                "select t.run_uuid from tags t"
                " join tags s on s.run_uuid = t.run_uuid and s.key = 'study' and s.value = 'small'"
                " join runs r on r.run_uuid = t.run_uuid and r.lifecycle_stage = 'active'"
                " where t.key = 'identity' and t.value = ?",
                (key,),
            ).fetchall()
            if len(runs) != 1:
                yield f"{path.stem} has {len(runs)} runs"
                continue
            rows = database.execute("select key, step, value, is_nan from metrics where run_uuid = ?", runs[0])
            sent = Series((name, step, shown(math.nan if nan else value)) for name, step, value, nan in rows)
            yield from compared(path.stem, written(root / "store" / "train" / key / "metrics.jsonl"), sent)


Harm = Callable[[Scene], object]


@dataclass(frozen=True)
class Fault:
    """One kind of disturbance."""

    harm: Harm
    """Done at a random moment, while the command runs."""
    mend: Harm = lambda scene: None
    """Done before the same command is given again."""
    before: Harm = lambda scene: None
    """Done before the command is given first."""
    lacks: Callable[[], str | None] = lambda: None
    """Reason why this machine cannot do it."""
    own_disk: bool = False
    """True where the output root is a small disk of its own."""
    longer: float = 1.0
    """Factor on the study's duration where the fault's daemons carry it."""
    word: str = ""
    """Word that the command must report where it ends with exit code 4."""
    may_come_too_late: bool = False
    """True where it may come after the command has last looked there; then the next command meets it."""


def _pause(scene: Scene) -> None:
    """Seconds for which processes are stopped or daemons are missing."""
    time.sleep(scene.dice.uniform(1.0, 12.0))


def _stop(scene: Scene, processes: Iterable[psutil.Process]) -> None:
    processes = list(processes)
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.suspend()
    _pause(scene)
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.resume()


def _kill_one(scene: Scene) -> None:
    with suppress(psutil.NoSuchProcess, IndexError):
        scene.dice.choice(scene.family()).kill()


def _damage(scene: Scene, change: Callable[[Path, int], object]) -> None:
    """Change a file of the output root at a random place."""
    if files := [path for path in scene.files() if path.stat().st_size]:
        path = scene.dice.choice(files)
        with suppress(FileNotFoundError):
            change(path, scene.dice.randrange(path.stat().st_size))


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 1 << at % 8
        file.seek(at)
        file.write(bytes([byte]))


def _remove(scene: Scene) -> None:
    if folders := sorted(path for path in scene.root.rglob("*") if path.is_dir()):
        shutil.rmtree(scene.dice.choice(folders), ignore_errors=True)


def _remount(options: str) -> Harm:
    return lambda scene: subprocess.run(["mount", "-o", f"remount,{options}", str(scene.root)], check=True)


def _little_room(scene: Scene) -> None:
    """Less than the study needs at most, and more than is there already."""
    there, needed = scene.sizes
    _remount(f"size={int(there + scene.dice.random() * (needed - there)) // 1024 + 64}k")(scene)


def _read_only(scene: Scene) -> None:
    """The command finds it so: none may force it below programs that have files open."""
    scene.kill_all()
    _remount("ro")(scene)
    scene.start()


def _no_mount() -> str | None:
    if os.geteuid() or shutil.which("mount") is None:
        return "a small disk is mounted by root alone"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return "no disk can be mounted here" if tried.returncode else None


def _another(**changes: Any) -> Harm:
    """A second command beside the first, which must end well."""

    def run(scene: Scene) -> None:
        second = replace(scene, process=None, **changes)
        second.start()
        code, said = second.ended()
        assert code == 0, f"a second command ended with {code}: {said[-500:]}"

    return run


def _own_mlflow(scene: Scene) -> None:
    """Its database is that of a study without a server, so that the same comparison reads it."""
    server = Server(f"sqlite:///{scene.root / 'mlflow.db'}", scene.root / "mlartifacts", scene.folder / "mlflow.log")
    scene.around.callback(server.kill)
    scene.daemons, scene.environment["MLFLOW_TRACKING_URI"] = server, server.uri


def _kill_mlflow(scene: Scene) -> None:
    scene.daemons.kill()
    _pause(scene)
    scene.daemons.start()


def _own_ray(scene: Scene) -> None:
    scene.daemons, scene.executor = scene.around.enter_context(ray_nodes.ray_nodes()), "ray"
    scene.environment["RAY_ADDRESS"] = scene.daemons.address


def _new_ray(scene: Scene) -> None:
    """Start a cluster in place of one that has lost its head."""
    if not scene.daemons.has_head:
        scene.daemons.start()
        scene.environment["RAY_ADDRESS"] = scene.daemons.address


FAULTS: dict[str, Fault] = {
    "command killed": Fault(lambda scene: scene.process.send_signal(signal.SIGKILL)),
    "child killed": Fault(_kill_one),
    "all killed": Fault(Scene.kill_all),
    "Ctrl-C": Fault(lambda scene: scene.process.send_signal(signal.SIGINT)),
    "terminated": Fault(lambda scene: scene.process.send_signal(signal.SIGTERM)),
    "command stopped": Fault(lambda scene: _stop(scene, [psutil.Process(scene.process.pid)])),
    "children stopped": Fault(lambda scene: _stop(scene, scene.family())),
    "file truncated": Fault(lambda scene: _damage(scene, os.truncate), may_come_too_late=True),
    "bit flipped": Fault(lambda scene: _damage(scene, _flip), may_come_too_late=True),
    "folder removed": Fault(_remove, may_come_too_late=True),
    "disk full": Fault(lambda scene: None, _remount("size=1g"), _little_room, _no_mount, own_disk=True),
    "read-only": Fault(_read_only, _remount("rw"), lacks=_no_mount, own_disk=True),
    "two commands": Fault(_another()),
    "two studies": Fault(_another(name="other")),
    "MLflow killed": Fault(_kill_mlflow, before=_own_mlflow),
    "Ray head killed": Fault(
        lambda scene: scene.daemons.lose_head(), _new_ray, _own_ray, ray_nodes.missing, longer=1.5,
        word="head of the Ray cluster",
    ),
}  # fmt: skip
OFTEN = ("bit flipped", "disk full", "read-only", "two commands", "MLflow killed", "Ray head killed")
"""The faults of `make test-slow`; `make faults` does all. Tests of executors kill SLURM's daemons and Ray's nodes."""
