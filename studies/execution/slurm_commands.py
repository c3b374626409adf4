"""SLURM's own commands: what they are asked, and what their answers mean."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import UserError

ANSWER_SECONDS = 30.0
"""How long a command may take: a busy controller makes the commands wait and try again."""
FIELDS = "JobID:|,State:|,exit_code:|,Reason:|,Name:255"
_AWAY = re.compile(
    r"slurm controller|connect failure|connection (refused|reset)|timed? ?out|zero bytes|standby|temporarily|"
    r"unexpected message|transport|authenticat|munge|no route|communication",
    re.IGNORECASE,
)
_FULL = re.compile(r"submit\w* limit|MaxSubmit|MaxJobs|max job count|job count limit", re.IGNORECASE)


class Away(Exception):
    """The controller does not answer."""


class Full(Exception):
    """The queue takes no more jobs of this user at present."""


class Refused(Exception):
    """The controller has answered: no."""


@dataclass(frozen=True)
class JobState:
    """What the queue says of a job."""

    state: str
    status: int
    """As ``wait`` gives it: exit code and signal."""
    reason: str
    name: str

    @property
    def exit_code(self) -> int | None:
        """None for a job that a signal ended."""
        return os.waitstatus_to_exitcode(self.status) if not self.status & 0x7F else None


def ask(*command: str, script: str | None = None) -> str:
    """The answer of a command. Raises `Away`, `Full`, `Refused`, and `UserError` where there is no such command."""
    try:
        done = subprocess.run(
            command,
            input=script,
            stdin=subprocess.DEVNULL if script is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C is the driver's business
        )
    except FileNotFoundError:
        raise UserError(
            f"no '{command[0]}' on this machine: --executor slurm has to be started where SLURM's commands are, such as"
            " a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise Away(f"{command[0]} has not answered within {ANSWER_SECONDS:g} s") from None
    if done.returncode == 0:
        return done.stdout
    said = _last_line(done.stderr) or f"{command[0]} ended with exit code {done.returncode}"
    if _FULL.search(done.stderr):
        raise Full(said)
    raise (Away if _AWAY.search(done.stderr) else Refused)(said)


def submit(arguments: Sequence[str], script: str) -> str:
    """Submit a job, and return its number."""
    answer = ask("sbatch", "--parsable", *arguments, script=script)
    return answer.strip().splitlines()[-1].partition(";")[0]


def jobs_of_mine() -> dict[str, JobState]:
    """All jobs of this user that the controller remembers, by number. Raises `Away`."""
    try:
        answer = ask("squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--Format={FIELDS}")
    except (Refused, Full) as error:
        raise Away(str(error)) from None
    found = {}
    for line in answer.splitlines():
        number, _, rest = line.strip().partition("|")
        parts = rest.split("|", 3)
        if len(parts) == 4 and parts[1].isdigit():
            state, status, reason, name = parts
            found[number] = JobState(state, int(status), reason, name.rstrip())
    return found


def accounted(numbers: Sequence[str]) -> dict[str, JobState]:
    """Jobs that the controller has forgotten, as the accounting remembers them; none where there is no accounting."""
    try:
        answer = ask(
            "sacct", "-X", "-n", "-P", "--format=JobIDRaw,State,ExitCode,JobName", f"--jobs={','.join(numbers)}"
        )
    except (Away, Refused, Full, UserError):
        return {}
    found = {}
    for line in answer.splitlines():
        parts = line.split("|", 3)
        code, _, number = parts[2].partition(":") if len(parts) == 4 else ("", "", "")
        if code.isdigit() and number.isdigit():
            status = int(number) or int(code) << 8
            found[parts[0]] = JobState(parts[1].partition(" ")[0], status, "", parts[3])
    return found


def cancel(numbers: Sequence[str], *how: str) -> None:
    """End jobs; of those that have ended nothing is said."""
    ask("scancel", "--quiet", *how, *numbers)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
