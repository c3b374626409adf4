"""Workers as jobs of SLURM, one a trial. They outlive their driver.

SLURM's own commands are enough: a job is a shell script that starts the worker, and files carry all else. The script
asks for the requeue at the time limit itself, so a trial goes on without a driver too.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.trial import TrialConfig
from pipeline.errors import INTERRUPTED, UserError
from pipeline.models.cpu import HUGE_PAGES
from pipeline.resources.device import gpu_visible
from pipeline.run.leaving import LEAVE, LEFT
from studies.execution import slurm_commands
from studies.execution.file_executor import Ended, WorkerState
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Job
from studies.execution.shared_store import check_here
from studies.execution.slurm_commands import Away, Full, JobState, Refused
from studies.execution.slurm_options import SlurmOptions, options_in, read_options
from studies.execution.worker import DISK_FULL

FIRST_LOOK, LOOK_GROWTH, LAST_LOOK = 5.0, 1.3, 60.0
"""Seconds between two looks at the queue; they grow while nothing changes there."""
STALE_SECONDS = 150.0
"""A queue that was seen so long ago says nothing of a job any more."""
END_SECONDS = 90.0
"""How long a job may take to end: SLURM gives it KillWait seconds, 30 by default, between SIGTERM and SIGKILL."""
TRACEBACK_SECONDS = 5.0
"""How long a job that hung may take to write where it stood."""
NAMED_SECONDS = 300
"""How long a job waits for the driver to note its number."""
MARGIN_SECONDS = 15
"""A trial that has not left so long before its time limit is stopped, so that it can still be requeued."""
TOO_SHORT = 76
"""Exit code of a job that came no further within its whole time limit."""
LAUNCH_FAILED = "launch failed"
"""How the reason of a job begins that SLURM holds, since a node could not start it."""
NAME = "ablate "
"""How the names of our jobs begin."""
NAME_KEPT = 200
"""Characters of a job's name that squeue is sure to print."""
UNSENT = "not submitted yet"
WAITS = frozenset(
    ["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"]
)
RUNS = frozenset(["RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"])
GOES_ON = {
    "TIMEOUT": "ran into its time limit",
    "PREEMPTED": "was preempted",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "got a node that did not start",
}
"""States in which a job has ended through no fault of the trial."""
STUCK = ("PartitionTimeLimit", "BadConstraints", "JobHeld", "QOSMaxWall", "AssocMaxWall", "DependencyNeverSatisfied")
"""How reasons begin for which a job waits until somebody changes something."""
SCRIPT = """#!/bin/sh
folder={folder}
export {leave}="$folder/leave" PYTHONPATH={root}"${{PYTHONPATH:+:$PYTHONPATH}}"
{exports}
mine() {{ [ "$(cut -d " " -f 1 "$folder/worker" 2>/dev/null)" = "$SLURM_JOB_ID" ]; }}
waited=0
until mine; do  # the driver has not noted this job yet, or wants another one
    [ $waited -ge {named} ] && exit 0
    sleep 1
    waited=$((waited + 1))
done
rm -f "${leave}"
worker= limit=
warned() {{  # SLURM says that the time limit is near
    limit=near
    : > "${leave}"
    (sleep {patience}; kill -TERM "$worker") 2>/dev/null &
}}
trap warned USR1
trap : TERM ABRT  # the worker has them from SLURM, and decides
{python} -m studies.execution.worker "$folder" &
worker=$!
while :; do
    wait "$worker"
    code=$?
    kill -0 "$worker" 2>/dev/null || break
done
if [ "$limit" ] && [ $code = {left} ]; then
    trap - TERM
    until scontrol requeue "$SLURM_JOB_ID"; do sleep 10; done
    sleep 60  # SLURM ends the script; if it ended by itself, its exit code would count
fi
[ "$limit" ] && [ $code = {interrupted} ] && [ ! -e "$folder/cancel" ] && exit {too_short}
exit $code
"""


@dataclass
class _Known:
    """What the driver knows of a job."""

    number: str
    title: str
    """Empty for a job that an earlier version of the program submitted."""
    folder: JobFolder | None = None
    """Of a job that this driver has submitted."""
    last: str = ""
    """The state at the last look."""
    reason: str = ""
    accounted: bool = False
    """The accounting was asked for it."""
    end: Ended | None = None

    @property
    def label(self) -> str:
        """Of the trial."""
        return self.title.rpartition(" ")[0] or f"job {self.number}"


class Slurm:
    """The launcher of a SLURM cluster. `tell` takes lines for the user.

    A worker's name is the number of its job and its title (`title`), such as ``17 weak seed 0 3fa2c1``: a controller
    that is killed forgets its last seconds, and gives the numbers of these jobs to other ones.
    """

    outlives = True
    lag_seconds = 10.0

    def __init__(
        self, options: SlurmOptions, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._tell, self._clock = options, tell, clock
        self._queue: dict[str, JobState] = {}
        self._jobs: dict[str, _Known] = {}
        self._unsent: dict[str, tuple[Job, JobFolder]] = {}
        self._sent: dict[str, str] = {}
        """Of jobs that could not be submitted at once: the name that the driver knows, and the true one."""
        self._checked = False
        self._seen = self._asked = float("-inf")
        self._interval = FIRST_LOOK
        self._complaint = ""

    @classmethod
    def of(cls, options: Path | None, tell: Callable[[str], None]) -> Slurm:
        """With the options in a file. Raises `UserError`, also where SLURM's commands are missing."""
        try:
            known = options_in(slurm_commands.ask("sbatch", "--help"))
        except (Away, Refused, Full) as error:
            raise UserError(f"sbatch does not work here: {error}") from None
        return cls(read_options(options, known) if options else SlurmOptions(), tell)

    def start(self, job: Job, folder: JobFolder) -> str:
        """Submit a job. While the controller does not answer, or takes no more, the job counts as one that waits.

        Raises `UserError` where the output root lacks what several machines need (`studies.execution.shared_store`).
        """
        if not self._checked:
            check_here(job.layout.root)
            self._checked = True
        folder.create(job, outlives=True, environment={} if gpus_of(job.config) else {"CUDA_VISIBLE_DEVICES": ""})
        job.log.parent.mkdir(parents=True, exist_ok=True)
        name = None if self._unsent else self._submit(job, folder)
        if name is None:
            name = f"{UNSENT}: {folder.path}"
            self._unsent[name] = (job, folder)
            return name
        self._interval = FIRST_LOOK
        return name

    def state(self, name: str) -> WorkerState:
        """Of the job of this name. What is not known while the controller is away counts as waiting."""
        if name in self._unsent:
            return "queued"
        name = self._sent.get(name, name)
        number, _, named = name.partition(" ")
        if not number.isdigit():
            return "unknown"
        if name not in self._jobs:  # another driver's
            self._jobs[name] = _Known(number, named)
            if self._clock() - self._asked > FIRST_LOOK:
                self._look()
        known = self._jobs[name]
        if known.end is None:
            if self._clock() - self._seen > STALE_SECONDS:
                return "queued"
            state = self._state(known)
            if not isinstance(state, Ended):
                return state
            known.end = state
        return known.end

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Look at the queue when it is time."""
        if self._clock() - self._asked >= self._interval:
            self._send()
            self._look()
        time.sleep(seconds)

    def end(self, names: Sequence[str], *, hung: bool = False) -> None:
        """By scancel; before, SIGABRT has one that hung write the traceback of every thread."""
        for name in names:
            self._unsent.pop(name, None)
        numbers = [number for name in names if (number := self._number(name)).isdigit()]
        if not numbers:
            return
        with suppress(Away, Refused, Full):  # the folder goes, and the worker notices
            if hung:
                slurm_commands.cancel(numbers, "--full", f"--signal={signal.Signals.SIGABRT.name[3:]}")
                time.sleep(TRACEBACK_SECONDS)
            slurm_commands.cancel(numbers)
            deadline = self._clock() + END_SECONDS
            while self._clock() < deadline:
                self._queue = slurm_commands.jobs_of_mine()
                if not any(self._queue[number].state in RUNS for number in numbers if number in self._queue):
                    return
                time.sleep(1.0)

    def forget(self, name: str) -> None:
        """The job ends by itself."""
        self._unsent.pop(name, None)
        self._jobs.pop(self._sent.pop(name, name), None)

    def _number(self, name: str) -> str:
        """Of the job that a worker's name stands for; empty where another job has it."""
        number, _, named = self._sent.get(name, name).partition(" ")
        found = self._queue.get(number)
        return number if found is None or _is(named, found) else ""

    def _submit(self, job: Job, folder: JobFolder) -> str | None:
        """The name of the worker; None while the controller does not answer, or takes no more."""
        try:
            number = slurm_commands.submit(arguments(job, self._options), script(job, folder, self._options))
        except (Away, Full, Refused) as error:
            if isinstance(error, Refused) or (isinstance(error, Full) and not self._has_jobs()):
                raise UserError(
                    f"sbatch refuses {job.label}: {error}; options of sbatch go into a file (--cluster)"
                ) from None
            self._complain(f"{job.label} is not submitted yet: {error}")
            return None
        self._jobs[name := f"{number} {title(job)}"] = _Known(number, title(job), folder)
        self._queue[number] = JobState("PENDING", 0, "", NAME + title(job))
        return name

    def _send(self) -> None:
        """Submit what could not be submitted before."""
        for name, (job, folder) in list(self._unsent.items()):
            sent = self._submit(job, folder)
            if sent is None:
                return
            del self._unsent[name]
            self._sent[name] = sent
            folder.name_worker(sent)

    def _look(self) -> None:
        """Ask once for all jobs."""
        before, slower = self._queue, min(self._interval * LOOK_GROWTH, LAST_LOOK)
        if not self._jobs:
            self._asked, self._interval = self._clock(), slower
            return
        try:
            queue = slurm_commands.jobs_of_mine()
        except Away as error:
            self._complain(f"SLURM does not answer: {error}; trials that run go on, and it is asked again")
            self._asked, self._interval = self._clock(), slower
            return
        gone = [known for known in self._jobs.values() if known.number not in queue and not known.accounted]
        for known in gone:
            known.accounted = True
        queue |= slurm_commands.accounted([known.number for known in gone]) if gone else {}
        if self._complaint and not self._unsent:
            self._tell("SLURM answers, and all jobs are submitted")
            self._complaint = ""
        self._queue, self._seen, self._asked = queue, self._clock(), self._clock()
        changed = any(_of(before, known.number) != _of(queue, known.number) for known in self._jobs.values())
        self._interval = FIRST_LOOK if changed else slower

    def _state(self, known: _Known) -> WorkerState:
        number, found = known.number, self._queue.get(known.number)
        if found is not None and found.name.startswith(NAME) and not _is(known.title, found):
            return Ended(f"SLURM has lost job {number}, and given its number to another one", lost=True)
        if found is None or not _is(known.title, found):
            if known.folder is not None and not known.folder.alive_file.exists():
                return Ended(f"SLURM has lost job {number}, which had not begun", lost=True)
            return "unknown"
        known.title = found.name.removeprefix(NAME)
        if found.state in WAITS and found.reason.startswith(LAUNCH_FAILED):
            with suppress(Away, Refused, Full):
                slurm_commands.cancel([number])
            return Ended(f"a node could not start job {number}", lost=True)
        self._tell_change(known, found)
        if found.state in WAITS:
            return "queued"
        return "running" if found.state in RUNS else _end_of(number, found)

    def _tell_change(self, known: _Known, found: JobState) -> None:
        if found.state in WAITS and known.last in RUNS:
            self._tell(f"{known.label}: job {known.number} waits in the queue again and goes on from its checkpoint")
        stuck = found.state in WAITS and found.reason.startswith(STUCK)
        if stuck and found.reason != known.reason:
            self._tell(f"{known.label}: job {known.number} waits in the queue for {found.reason}")
        known.last, known.reason = found.state, found.reason

    def _has_jobs(self) -> bool:
        """Whether any job of this user waits or runs, whose end could make room."""
        with suppress(Away):
            return any(one.state in WAITS | RUNS for one in slurm_commands.jobs_of_mine().values())
        return True

    def _complain(self, text: str) -> None:
        if not self._complaint:
            self._tell(text)
        self._complaint = text


def title(job: Job) -> str:
    """The label of a trial and a digest of its folder: studies can have trials of the same label."""
    return f"{job.label} {hashlib.sha256(str(job.folder.absolute()).encode()).hexdigest()[:6]}"


def _is(named: str, found: JobState) -> bool:
    """Whether what the queue says of a number is said of the job of this title, and not of another one that has got it
    since. Any job of ours is meant where the title is not known."""
    if not named:
        return found.name.startswith(NAME.rstrip())
    return found.name[:NAME_KEPT].rstrip() == (NAME + named)[:NAME_KEPT].rstrip()


def _of(queue: dict[str, JobState], number: str) -> tuple[str, str] | None:
    found = queue.get(number)
    return None if found is None else (found.state, found.reason)


def _end_of(number: str, found: JobState) -> Ended:
    """What the last state of a job says."""
    code = found.exit_code
    if found.state == "CANCELLED":
        return Ended(f"job {number} was cancelled", interrupted=True)
    if found.state in GOES_ON:
        return Ended(f"job {number} {GOES_ON[found.state]}", lost=True)
    if found.state == "FAILED" and code == LEFT:
        return Ended(f"job {number} had to leave", lost=True)
    if found.state == "FAILED" and code == TOO_SHORT:
        return Ended(
            f"the time limit of job {number} is too short: no stage and no update of the training came to an end within"
            " it; ask for more with time (--cluster)"
        )
    if found.state == "OUT_OF_MEMORY":
        return Ended(
            f"job {number} was killed: out of memory; ask for more with caps.memory_gib, or with mem (--cluster)"
        )
    ended = f"exit code {code}" if code is not None else f"signal {found.status & 0x7F}"
    hint = " (often: out of memory)" if signal.SIGKILL in (found.status & 0x7F, (code or 0) - 128) else ""
    said = f"job {number} ended as {found.state}, reason {found.reason or 'none'}, {ended}{hint}, and left no result"
    return Ended(said, interrupted=code == INTERRUPTED, disk_full=code == DISK_FULL)


def gpus_of(config: TrialConfig) -> int:
    """GPUs that a trial uses. Those of the nodes have to be like this machine's, which the keys of stages follow."""
    return config.runtime.processes if config.runtime.device != "cpu" and gpu_visible() else 0


def arguments(job: Job, options: SlurmOptions) -> list[str]:
    """What sbatch is called with."""
    log = str(job.log.absolute()).replace("%", "%%")
    return [
        f"--job-name={NAME}{title(job)}",
        f"--output={log}",
        "--open-mode=append",
        "--requeue",
        "--nodes=1",
        "--ntasks=1",
        f"--signal=B:USR1@{options.lead_seconds(job.config)}",
        *options.asked(job.config, gpus_of(job.config)),
    ]


def script(job: Job, folder: JobFolder, options: SlurmOptions) -> str:
    """What a job runs."""
    pages = HUGE_PAGES if job.config.runtime.device == "cpu" else {}
    return SCRIPT.format(
        folder=shlex.quote(str(folder.path.absolute())),
        leave=LEAVE,
        root=shlex.quote(str(Path(__file__).parents[2])),
        exports="\n".join(f"export {name}={shlex.quote(os.environ.get(name, value))}" for name, value in pages.items()),
        named=NAMED_SECONDS,
        patience=options.lead_seconds(job.config) - MARGIN_SECONDS,
        python=shlex.quote(sys.executable),
        left=LEFT,
        interrupted=INTERRUPTED,
        too_short=TOO_SHORT,
    )
