"""The faults, by name, and the daemons that some of them kill: each run has its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray_nodes
from faults.scene import Scene
from mlflow_servers import Server

Harm = Callable[[Scene], object]


def _nothing(scene: Scene) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """One kind of disturbance."""

    harm: Harm
    """Done at a random moment, while the command runs."""
    mend: Harm = _nothing
    """Done before the same command is given again."""
    before: Harm = _nothing
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
    "disk full": Fault(_nothing, _remount("size=1g"), _little_room, _no_mount, own_disk=True),
    "read-only": Fault(_read_only, _remount("rw"), lacks=_no_mount, own_disk=True),
    "two commands": Fault(_another(called="second")),
    "two studies": Fault(_another(name="other")),
    "MLflow killed": Fault(_kill_mlflow, before=_own_mlflow),
    "Ray head killed": Fault(
        lambda scene: scene.daemons.lose_head(), _new_ray, _own_ray, ray_nodes.missing, longer=1.5,
        word="head of the Ray cluster",
    ),
}  # fmt: skip
OFTEN = ("bit flipped", "disk full", "read-only", "two commands", "MLflow killed", "Ray head killed")
"""The faults of `make test-slow`; `make faults` does all. Tests of executors kill SLURM's daemons and Ray's nodes."""
