"""Hands as jobs of SLURM: one job array, each job a hand that takes trials until none is left. They go on without the
command that submitted them. SLURM requeues what it preempts; at its time limit a job leaves checkpoints and requeues
itself."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import line_of, read_yaml
from pipeline.errors import Fault, UserError
from pipeline.models.cpu import HUGE_PAGES
from pipeline.resources.device import gpu_visible
from pipeline.run.leaving import LEFT
from studies.execution.agenda import Agenda
from studies.execution.hand import Say
from studies.execution.program import HOME, python_path
from studies.execution.shared_store import check_here
from studies.execution.started import Started

LOOK_SECONDS = 10.0
"""Between two looks at the queue."""
LOOKS = 3
"""So often in a row no job may be found before the study counts as stopped."""
ANSWER_SECONDS = 30.0
"""How long a command may take: a busy controller makes the commands wait and try again."""
STARTUP_MINUTES = 30
"""Of the default time limit, beyond the hours of training that the caps allow."""
LEAD_SECONDS, MARGIN_SECONDS = 300, 15
"""How long before its time limit a job is warned, and how long before it what still runs is ended."""
HEADROOM, EXTRA_GIB = 1.25, 1.0
"""Host memory beyond caps.memory_gib, so that the cap is reached before SLURM kills: a factor, and for each process."""
ALIVE = {"PENDING", "CONFIGURING", "REQUEUED", "RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "RESIZING", "STOPPED"}
AWAY = re.compile(
    r"slurm controller|connect failure|connection (refused|reset)|timed? ?out|zero bytes|temporarily|munge|"
    r"authenticat|no route|communication",
    re.IGNORECASE,
)
RESERVED = ("array", "job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "nodes", "ntasks")
"""Options of sbatch that the program sets."""
SCRIPT = """#!/bin/sh
{exports}
{command} &
hand=$! limit=
trap 'limit=near; kill -USR1 $hand; (sleep {patience}; kill -TERM $hand) 2>/dev/null &' USR1
trap 'kill -TERM $hand' TERM
while :; do
    wait $hand
    code=$?
    kill -0 $hand 2>/dev/null || break
done
if [ "$limit" ] && [ $code = {left} ]; then  # what is preempted SLURM requeues, and what is cancelled ends
    trap - TERM
    until scontrol requeue "$SLURM_JOB_ID"; do sleep 10; done
    sleep 60  # SLURM ends the script; if it ended by itself, its exit code would count
fi
exit $code
"""


class Away(Exception):
    """The controller does not answer."""


class Slurm:
    """Has `jobs` jobs in the queue, and sees whether any is left."""

    def __init__(self, run: Started, agenda: Agenda, jobs: int, options: Mapping[str, str | None], say: Say) -> None:
        """`options` are sbatch's, by their names; None leaves out one that a job would have. Raises `UserError` where
        the output root lacks what several machines need, or sbatch refuses."""
        check_here(run.layout.root)
        self._run, self._agenda, self._say = run, agenda, say
        self._wanted, self._options = min(jobs, len(agenda.open()) or jobs), options
        self._name = f"ablate-{hashlib.sha256(str(run.folder.path).encode()).hexdigest()[:12]}"
        self._submitted = self._complained = False
        self._looked, self._missed = float("-inf"), 0

    def step(self) -> bool:
        """Submit what is missing, once, and look at the queue when it is time. Raises `Fault` when all jobs have ended
        and trials are left, `KeyboardInterrupt` when somebody has cancelled them."""
        left = bool(self._agenda.open()) or not self._agenda.plan
        if left and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                self._look()
            except Away as error:
                self._complain(f"SLURM does not answer: {error}; trials that run go on, and it is asked again")
        return left

    def wait(self, seconds: float) -> None:
        """Jobs write records and statuses meanwhile."""
        time.sleep(seconds)

    def close(self) -> None:
        """Jobs go on without this command."""
        if self._submitted and self._agenda.open():
            self._say(
                f"its jobs go on, and the same command watches them again; to end them: scancel --name {self._name}", ""
            )

    def _look(self) -> None:
        states = self._states()
        alive = sum(state in ALIVE for state in states)
        if not self._submitted:
            if alive < self._wanted:
                self._submit(self._wanted - alive)
            self._submitted = True
            return
        if self._complained:
            self._complained = False
            self._say("SLURM answers", "")
        self._missed = 0 if alive else self._missed + 1
        if self._missed >= LOOKS and self._agenda.open():
            if "CANCELLED" in states:
                raise KeyboardInterrupt
            ended = ", ".join(sorted(set(states))) or "unknown"
            logs = self._run.folder.path / "log"
            raise Fault(
                f"all jobs of SLURM have ended ({ended}), and {len(self._agenda.open())} trials are left; see"
                f" {logs}/hand-*.txt; if a job reached its time limit before a checkpoint, ask for more with time"
                " (--cluster); the same command continues"
            )

    def _states(self) -> list[str]:
        user = f"--user={os.getuid()}"
        return _ask("squeue", "--noheader", "--states=all", user, f"--name={self._name}", "--Format=State").split()

    def _submit(self, count: int) -> None:
        plan = self._agenda.open()
        log = str(self._run.folder.path / "log" / "hand-%A-%a.txt")
        (self._run.folder.path / "log").mkdir(exist_ok=True)
        asked = {**wanted([cell.config for cell in plan]), **self._options}
        given = [f"--{name}={value}" if value else f"--{name}" for name, value in asked.items() if value is not None]
        own = [
            f"--job-name={self._name}", f"--array=1-{count}", f"--output={log}", "--open-mode=append", "--requeue",
            "--nodes=1", "--ntasks=1", f"--signal=B:USR1@{_lead(asked.get('time'))}",
        ]  # fmt: skip
        _ask("sbatch", "--parsable", *own, *given, script=self._script(asked.get("time")))

    def _script(self, limit: str | None) -> str:
        folder, profile = self._run.folder, self._run.profile
        command = [sys.executable, str(HOME / "ablate.py"), "work", self._run.study.name]
        command += ["--profile", profile, "--out", str(folder.root)]
        variables = {"PYTHONPATH": python_path()}
        if all(cell.config.runtime.device == "cpu" for cell in self._agenda.open()):
            variables |= HUGE_PAGES
        return SCRIPT.format(
            exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            command=shlex.join(command),
            patience=_lead(limit) - MARGIN_SECONDS,
            left=LEFT,
        )

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._say(text, "yellow")
        self._complained = True


def wanted(configs: list[TrialConfig]) -> dict[str, str | None]:
    """What the caps of the largest trial come to, in options of sbatch."""
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
    written = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)  # as strings: YAML takes 1:30:00 for 5400
    values = dict[str, str | None]()
    for key, value in content.items():
        if key in RESERVED:
            line = line_of(path, (key,))
            raise UserError(f"{path}{'' if line is None else f', line {line}'}: '{key}' is set by the program")
        if isinstance(value, bool):
            values[key] = "" if value else None
        else:
            values[key] = ",".join(written[key]) if isinstance(value, list) else written[key]
    return values


def seconds_of(limit: str | None) -> float | None:
    """Seconds of a time limit as sbatch reads it; None for one without end.

    >>> [seconds_of(limit) for limit in ("90", "1:30", "1:30:00", "2-12", "1-0:30")]
    [5400.0, 90.0, 5400.0, 216000.0, 88200.0]
    """
    match = re.fullmatch(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})", limit or "")
    if match is None:
        return None
    parts = [float(part) for part in match["clock"].split(":")]
    scales = (3600, 60, 1) if match["days"] is not None or len(parts) == 3 else (60, 1)
    days = 86400 * float(match["days"] or 0)
    return days + sum(part * scale for part, scale in zip(parts, scales, strict=False))


def _lead(limit: str | None) -> int:
    """How long before its time limit a job is warned [s]: a tenth of it, within bounds."""
    seconds = seconds_of(limit)
    return LEAD_SECONDS if seconds is None else int(max(2 * MARGIN_SECONDS, min(LEAD_SECONDS, 0.1 * seconds)))


def _ask(*command: str, script: str | None = None) -> str:
    """The answer of a command of SLURM. Raises `Away`, and `UserError` for a refusal or where there is no such
    command."""
    given = {"input": script} if script is not None else {"stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            command,
            **given,
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
        raise Away(f"{command[0]} has not answered within {ANSWER_SECONDS:g} s") from None
    if done.returncode == 0:
        return str(done.stdout)
    said = (done.stderr.strip().splitlines() or [f"{command[0]} ended with exit code {done.returncode}"])[-1]
    if AWAY.search(done.stderr):
        raise Away(said)
    raise UserError(f"{command[0]} refuses: {said}; options of sbatch go into a file (--cluster)")
