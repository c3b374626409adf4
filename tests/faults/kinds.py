"""The faults, by name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray_nodes
import slurm_nodes
from faults import daemons
from faults.scene import PAUSE, Scene

FAKETIME = [Path("/usr/lib") / one / "faketime/libfaketimeMT.so.1" for one in ("x86_64-linux-gnu", "aarch64-linux-gnu")]
"""The variant for programs with threads, which it crashes now and then all the same: data races of it were mended in
2025 and 2026 (wolfcw/libfaketime, pull requests 488 and 547)."""
Harm = Callable[[Scene], None]


def _nothing(scene: Scene) -> None:
    pass


def _here() -> str:
    return ""


@dataclass(frozen=True)
class Fault:
    """One kind of disturbance."""

    says: str
    harm: Harm
    """At a random moment, while the command runs."""
    mend: Harm = _nothing
    """Before the same command is given again."""
    before: Harm = _nothing
    """Before the command is given first."""
    lacks: Callable[[], str] = _here
    """Why it cannot be had on this machine; empty where it can."""
    own_disk: bool = False
    """The output root is a small disk of its own."""
    crash: bool = False
    """What causes it can itself end the command by SIGSEGV."""
    longer: float = 1.0
    """How many times as long the study takes where the fault's daemons carry it."""
    word: str = ""
    """What the command must say where it ends with exit code 4."""
    may_come_too_late: bool = False
    """It may come after the command has looked there for the last time; then the next command sees it."""


def _kill_command(scene: Scene) -> None:
    scene.signal(signal.SIGKILL)


def _kill_child(scene: Scene) -> None:
    family = scene.family()
    if family:
        with suppress(psutil.NoSuchProcess):
            scene.dice.choice(family).kill()


def _stop(scene: Scene, processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.suspend()
    time.sleep(scene.dice.uniform(*PAUSE))
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.resume()


def _stop_command(scene: Scene) -> None:
    assert scene.process is not None
    with suppress(psutil.NoSuchProcess):
        _stop(scene, [psutil.Process(scene.process.pid)])


def _damaged_file(scene: Scene) -> Path | None:
    files = [path for path in scene.files() if path.stat().st_size]
    return scene.dice.choice(files) if files else None


def _truncate(scene: Scene) -> None:
    with suppress(FileNotFoundError):
        if (path := _damaged_file(scene)) is not None:
            os.truncate(path, scene.dice.randrange(path.stat().st_size))


def _flip(scene: Scene) -> None:
    with suppress(FileNotFoundError):
        if (path := _damaged_file(scene)) is not None:
            with path.open("r+b") as file:
                at = scene.dice.randrange(path.stat().st_size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << scene.dice.randrange(8)]))


def _remove(scene: Scene) -> None:
    folders = sorted(path for path in scene.root.rglob("*") if path.is_dir())
    if folders:
        shutil.rmtree(scene.dice.choice(folders), ignore_errors=True)


def _remount(scene: Scene, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(scene.root)], check=True)


def _little_room(scene: Scene) -> None:
    """As much as the study needs at most, and more than is there already."""
    there, needed = scene.sizes
    _remount(scene, f"size={int(there + scene.dice.random() * (needed - there)) // 1024 + 64}k")


def _much_room(scene: Scene) -> None:
    _remount(scene, "size=1g")


def _read_only(scene: Scene) -> None:
    """The command is told of it: a disk goes read-only below programs that have files open, which none may force."""
    scene.kill_all()
    _remount(scene, "ro")
    scene.start()


def _writable(scene: Scene) -> None:
    _remount(scene, "rw")


def _no_mount() -> str:
    if os.geteuid() or shutil.which("mount") is None:
        return "a small disk is mounted by root alone"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no disk can be mounted here"


def _clock(scene: Scene) -> None:
    _set_clock(scene, -scene.dice.randrange(60, 90_000))


def _set_clock(scene: Scene, seconds: int) -> None:
    """In one step: whoever reads half a line ends."""
    (scene.folder / "clock.new").write_text(f"{seconds:+d}s\n")
    os.replace(scene.folder / "clock.new", scene.folder / "clock")


def _own_clock(scene: Scene) -> None:
    _set_clock(scene, 0)
    library = next(path for path in FAKETIME if path.exists())
    scene.environment |= {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(scene.folder / "clock"),
        "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
    }  # fmt: skip


def _no_faketime() -> str:
    return "" if any(path.exists() for path in FAKETIME) else "libfaketime is not installed"


def _second_command(scene: Scene) -> None:
    second = Scene(scene.folder, scene.dice, called="second")
    second.start()
    ending = second.ended()
    if ending.code != 0:
        raise AssertionError(f"a second command ended with {ending.code}: {ending.said[-500:]}")


def _second_study(scene: Scene) -> None:
    other = Scene(scene.folder, scene.dice, name="other")
    other.start()
    ending = other.ended()
    assert ending.code == 0, f"a second study ended with {ending.code}: {ending.said[-500:]}"


FAULTS: dict[str, Fault] = {
    "command killed": Fault("SIGKILL for the command", _kill_command),
    "child killed": Fault("SIGKILL for a process that the command has started", _kill_child),
    "all killed": Fault("SIGKILL for all processes at once", Scene.kill_all),
    "Ctrl-C": Fault("SIGINT for the command", lambda scene: scene.signal(signal.SIGINT)),
    "terminated": Fault("SIGTERM for the command", lambda scene: scene.signal(signal.SIGTERM)),
    "command stopped": Fault("SIGSTOP for the command, SIGCONT 1 to 12 s later", _stop_command),
    "children stopped": Fault("the same for all that it has started", lambda scene: _stop(scene, scene.family())),
    "file truncated": Fault("a file of the output root cut anywhere", _truncate, may_come_too_late=True),
    "bit flipped": Fault("one bit of a file of the output root", _flip, may_come_too_late=True),
    "folder removed": Fault("a folder of the output root with all below it", _remove, may_come_too_late=True),
    "disk full": Fault(
        "a disk with too little room for the study", _nothing, _much_room, _little_room, _no_mount, True
    ),
    "read-only": Fault("a disk that can be read alone", _read_only, _writable, lacks=_no_mount, own_disk=True),
    "clock back": Fault(
        "the clock jumps back 1 min to 25 h", _clock, before=_own_clock, lacks=_no_faketime, crash=True
    ),
    "two commands": Fault("the same command given twice", _second_command),
    "MLflow killed": Fault(
        "SIGKILL for MLflow's server, which is started again 1 to 12 s later",
        daemons.kill_mlflow,
        before=daemons.own_mlflow,
    ),
    "SLURM killed": Fault(
        "SIGKILL for the controller or a node's daemon of SLURM, started again 1 to 12 s later",
        daemons.kill_slurm,
        before=daemons.own_slurm,
        lacks=lambda: slurm_nodes.missing() or "",
        longer=2.0,
    ),
    "Ray node killed": Fault(
        "SIGKILL for a node of Ray, and a new one 1 to 12 s later",
        daemons.kill_ray_node,
        before=daemons.own_ray,
        lacks=ray_nodes.missing,
        longer=1.5,
    ),
    "Ray head killed": Fault(
        "SIGKILL for the head of Ray; the next command finds a new cluster",
        daemons.kill_ray_head,
        daemons.new_ray,
        daemons.own_ray,
        ray_nodes.missing,
        longer=1.5,
        word="head of the Ray cluster",
    ),
    "two studies": Fault("another study with the same trials, on the same store", _second_study),
}
