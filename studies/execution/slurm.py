"""Hands as jobs of SLURM: one job array, each job a hand that takes trials until none is left. They go on without the
command that submitted them. SLURM requeues what it preempts; at its time limit a job leaves checkpoints and requeues
itself."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import yaml

from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import line_of, read_yaml
from pipeline.errors import Fault, UserError
from pipeline.resources.machine import MALLOC, gpu_visible
from pipeline.run.progress import LEFT
from studies.execution.agenda import Agenda
from studies.execution.hand import Hands, Say
from studies.execution.started import HOME, Started, python_path

LOOK_SECONDS = 10.0
"""Seconds between two looks at the queue."""
LOOKS = 3
"""Looks in a row that may find no job before the study counts as stopped."""
ANSWER_SECONDS = 30.0
"""Seconds that a command may take: a busy controller makes the commands wait and try again."""
STARTUP_MINUTES = 30
"""Minutes of the default time limit beyond the hours of training that the caps allow."""
LEAD_SECONDS = 30, 300
"""Seconds of warning before a job's time limit: at least, and at most. SLURM may warn up to a minute earlier."""
HEADROOM, EXTRA_GIB = 1.25, 1.0
"""Host memory beyond caps.memory_gib, so that the cap is reached before SLURM kills: a factor, and for each process."""
ALIVE = {"PENDING", "CONFIGURING", "REQUEUED", "RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "RESIZING", "STOPPED"}
RESERVED = ("array", "job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "nodes", "ntasks")
"""Options of sbatch that the program sets."""
SCRIPT = Path(__file__).with_name("slurm_job.sh.in").read_text("utf-8")


class Slurm(Hands):
    """Hands that keep `jobs` jobs in the queue, and check whether any is left."""

    def __init__(self, run: Started, agenda: Agenda, jobs: int, options: Mapping[str, str | None], say: Say) -> None:
        """`options` are sbatch's, by their names; None leaves out one that a job would have."""
        self._run, self._agenda, self._say = run, agenda, say
        self._wanted, self._options = min(jobs, len(agenda.open()) or jobs), options
        self._name = f"ablate-{hashlib.sha256(str(run.folder.path).encode()).hexdigest()[:12]}"
        self._submitted = self._complained = self._held = False
        self._looked, self._missed = float("-inf"), 0

    def step(self) -> bool:
        """Submit missing jobs, once, and look at the queue when it is time. Raises `UserError` where sbatch refuses,
        `Fault` when all jobs have ended and trials are left, `KeyboardInterrupt` when somebody has cancelled them."""
        left = self._agenda.is_left()
        if left and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            user = f"--user={os.getuid()}"
            code, answer = _ask("squeue", "--noheader", "--states=all", user, f"--name={self._name}", "--format=%T %r")
            if code == 0:
                self._see(answer.splitlines())
            elif not self._complained:
                self._say(f"SLURM does not answer: {answer}; trials that run go on, and it is asked again", "yellow")
            self._complained = code != 0
        return left

    def close(self) -> None:
        """Jobs go on without this command."""
        if self._submitted and self._agenda.open():
            self._say(
                f"its jobs go on, and the same command watches them again; to end them: scancel --name {self._name}", ""
            )

    def _see(self, jobs: list[str]) -> None:
        """Act on all jobs of the study: a line with state and reason for each."""
        states = [job.split()[0] for job in jobs]
        alive = sum(state in ALIVE for state in states)
        if not self._submitted:
            if alive < self._wanted:
                self._submit(self._wanted - alive)
            self._submitted = True
            return
        held = [job for job in jobs if "held" in job.lower()]  # a job that fails to be launched twice is held too
        if alive and len(held) == alive and not self._held:
            reason = held[0].split(maxsplit=1)[1]
            release = f"scontrol release jobname={self._name}"
            self._say(f"SLURM holds all jobs of the study ({reason}); to let them start: {release}", "yellow")
        self._held = 0 < alive == len(held)
        self._missed = 0 if alive else self._missed + 1
        if self._missed >= LOOKS and self._agenda.open():
            if "CANCELLED" in states:
                raise KeyboardInterrupt
            logs = self._run.folder.path / "log"
            raise Fault(
                f"all jobs of SLURM have ended ({', '.join(sorted(set(states))) or 'unknown'}), and"
                f" {len(self._agenda.open())} trials are left; see {logs}/hand-*.txt; if a job reached its time limit"
                " before a checkpoint, ask for more with time (--cluster); the same command continues"
            )

    def _submit(self, count: int) -> None:
        log = self._run.folder.path / "log"
        log.mkdir(exist_ok=True)
        configs = [cell.config for cell in self._agenda.open()]
        options = {**wanted(configs), **self._options}
        given = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items() if value is not None]
        own = [
            f"--job-name={self._name}", f"--array=1-{count}", f"--output={log / 'hand-%A-%a.txt'}", "--requeue",
            "--open-mode=append", "--nodes=1", "--ntasks=1", f"--signal=B:USR1@{lead_of(options.get('time'))}",
        ]  # fmt: skip
        command = [sys.executable, str(HOME / "ablate.py"), "work", self._run.study.name]
        command += ["--profile", self._run.profile, "--out", str(self._run.folder.root)]
        variables = {"PYTHONPATH": python_path()}
        if all(config.runtime.device == "cpu" for config in configs):
            variables |= MALLOC
        script = SCRIPT.format(
            exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            command=shlex.join(command),
            left=LEFT,
        )
        code, answer = _ask("sbatch", "--parsable", *own, *given, script=script)
        if code != 0:
            raise UserError(f"sbatch refuses: {answer}; options of sbatch go into a file (--cluster)")


def wanted(configs: list[TrialConfig]) -> dict[str, str | None]:
    """Translate the caps of the largest trial to options of sbatch."""
    processes = max(config.runtime.processes for config in configs)
    threads = max(config.runtime.threads for config in configs)
    memory = max(processes * (HEADROOM * config.caps.memory_gib + EXTRA_GIB) for config in configs)
    hours = max(config.caps.wall_clock_h for config in configs)
    on_card = gpu_visible() and any(config.runtime.device != "cpu" for config in configs)
    return {
        "cpus-per-task": str(processes * threads),
        "mem": f"{math.ceil(memory * 1024)}M",
        "time": str(math.ceil(60 * hours) + STARTUP_MINUTES),
        **({"gres": f"gpu:{processes}"} if on_card else {}),
    }


def read_options(path: Path | None) -> dict[str, str | None]:
    """Options of sbatch from a YAML file: ``true`` is one without a value, ``false`` leaves one out, a list is joined
    by commas. Raises `UserError` for those that the program sets; sbatch itself refuses others."""
    if path is None:
        return {}
    content = read_yaml(path)
    for key in RESERVED:
        if key in content:
            raise UserError(f"{path}, line {line_of(path, (key,))}: '{key}' cannot be given: ablate sets it")
    written = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)  # as strings: YAML takes 1:30:00 for 5400
    values = {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in written.items()}
    return values | {key: "" if value else None for key, value in content.items() if isinstance(value, bool)}


def lead_of(limit: str | None) -> int:
    """Return the seconds of warning before a time limit: a tenth of it, within bounds; `limit` as sbatch reads it.

    >>> [lead_of(limit) for limit in ("10", "20:30", "0:20:00", "2-12", "infinite", None)]
    [60, 123, 120, 300, 300, 300]
    """
    with suppress(ValueError):
        days, _, clock = (limit or "").rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        scales = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
        seconds = 86400 * int(days or 0) + sum(part * scale for part, scale in zip(parts, scales, strict=False))
        return int(min(max(LEAD_SECONDS[0], 0.1 * seconds), LEAD_SECONDS[1]))
    return LEAD_SECONDS[1]


def _ask(*command: str, script: str | None = None) -> tuple[int, str]:
    """Run a command of SLURM: its exit code and answer; for a code other than 0, the last line of its errors.

    Raises `UserError` where there is no such command.
    """
    try:
        done = subprocess.run(
            command,
            input=script or "",
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            start_new_session=True,  # Ctrl-C is for this process
        )
    except FileNotFoundError:
        raise UserError(
            f"no '{command[0]}' on this machine: run --executor slurm where SLURM's commands are, such as a login node"
        ) from None
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {ANSWER_SECONDS:g} s"
    lines = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
    return done.returncode, done.stdout if done.returncode == 0 else lines[-1]
