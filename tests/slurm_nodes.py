"""A real SLURM of two nodes on this machine, from Debian's packages slurm-wlm and munge: for root, on loopback.

It writes into a folder of its own in /tmp, which is removed at its end. There is no accounting, so a job is known for
five minutes after its end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from helpers import kill, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
REVOKED_SECONDS = 6.0
"""Seconds that a requeued job waits before it is hastened."""
NODES = ("n1", "n2")
CORES = 4
"""Cores of each node, whatever the machine has."""


def missing() -> str | None:
    """Return why no SLURM can be started here; None where one can."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"no {absent[0]} on this machine: apt install slurm-wlm munge"
    return None if os.geteuid() == 0 else "SLURM's daemons have to be started as root"


class SlurmNodes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._waits: dict[str, float] = {}

    def start(self) -> None:
        self.folder.chmod(0o755)  # jobs of other users read it
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        text, host = Path(__file__).with_name("slurm.conf").read_text("utf-8"), socket.gethostname()
        self.configuration.write_text(text.format(folder=self.folder, host=host, ports=_ports(3), cores=CORES))
        self.begin("munged")
        wait_until((self.folder / "munge.socket").exists, 20, "munge listens")
        for name in ("slurmctld", *NODES):
            self.begin(name)
        asked = ("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        wait_until(lambda: self.ask(*asked).split() == ["idle"] * len(NODES), 60, "all nodes are idle")

    def begin(self, name: str) -> None:
        folder, configured = self.folder, ["-D", "-f", str(self.configuration)]
        if name == "munged":
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "seed-file": "seed"}
            options = ["--foreground", "--force", *(f"--{key}={folder / file}" for key, file in files.items())]
        else:
            options = configured if name == "slurmctld" else [*configured, "-N", name]
        program = _program("slurmd" if name in NODES else name)
        with (folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen([program, *options], stdout=out, stderr=out, start_new_session=True)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(how)
        daemon.wait(30)

    def lose(self, node: str) -> None:
        """Have a node die with all that runs on it."""
        daemon = self._daemons.pop(node)
        working = [one for one in self._jobs() if one.info["environ"].get("SLURMD_NODENAME") == node]
        steps = list[psutil.Process]()
        for one in working:
            with suppress(psutil.NoSuchProcess):
                steps += [above for above in one.parents() if above.name() == "slurmstepd"]
        daemon.kill()  # first those that would tell the controller
        kill([*steps, *working])
        daemon.wait(30)

    def ask(self, *command: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def jobs(self) -> dict[str, str]:
        lines = self.ask("squeue", "-h", "--states=all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def hasten(self) -> None:
        """Let requeued jobs start after a few seconds: SLURM has them wait for two minutes, and a node refuses
        a job whose credential it has just revoked."""
        lines = self.ask("squeue", "-h", "--states=PENDING", "-o", "%i %r").splitlines()
        waiting = {number for number, reason in (line.split(None, 1) for line in lines) if reason == "BeginTime"}
        self._waits = {number: self._waits.get(number, time.monotonic()) for number in waiting}
        for number, since in self._waits.items():
            if time.monotonic() - since > REVOKED_SECONDS:
                self.ask("scontrol", "update", f"JobId={number}", "StartTime=now")

    def stop(self) -> None:
        self.ask("scancel", "--user=root")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and {"RUNNING", "COMPLETING"} & set(self.jobs().values()):
            time.sleep(0.5)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        kill(self._jobs())  # which their daemon could not end

    def _jobs(self) -> list[psutil.Process]:
        """Processes of jobs of this cluster, not of another one on this machine."""
        ours = {"SLURM_CONF": str(self.configuration)}.items()
        found = [one for one in psutil.process_iter(["environ"]) if ours <= (one.info["environ"] or {}).items()]
        return [one for one in found if "SLURM_JOB_ID" in one.info["environ"]]


@contextmanager
def slurm_nodes() -> Iterator[SlurmNodes]:
    """Have a SLURM while the context lasts. Its folder has a short name: where the path of a job's socket has more than
    107 characters, no job starts, and SLURM holds it."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        nodes = SlurmNodes(Path(folder))
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.stop()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _ports(count: int) -> list[int]:
    """One free port, and `count` - 1 that follow each other."""
    for first in range(20000 + os.getpid() % 5000, 30000):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as server:
                    server.bind(("127.0.0.1", port))
            return list(range(first, first + count))
    raise RuntimeError("no free ports")
