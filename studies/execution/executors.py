"""How trials are carried out: in this process, or in workers. Knows neither Optuna nor MLflow.

An executor takes jobs from the driver whenever it has room and hands back events. Trials never see the
driver's files; what they have to say goes through a `Reporter`, as messages.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pipeline.config.names import nearest
from pipeline.errors import UserError
from studies.execution.file_executor import FileExecutor
from studies.execution.jobs import Crashed, Event, EventReporter, Finished, Job, Message, NextJob
from studies.execution.processes import Processes
from studies.execution.worker import call, crash, open_log


class Executor(Protocol):
    """Runs jobs until there are none. Events come in the caller's thread, through `emit`."""

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        """Have at most `slots` jobs at once. An exception from `emit`, or Ctrl-C, ends all running jobs, unless they
        outlive their driver."""


class Inline:
    """One trial after the other in this process: for debugging, and where processes cannot be started."""

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        while (job := next_job()) is not None:
            emit(self._run(job, emit))

    def _run(self, job: Job, emit: Callable[[Event], None]) -> Event:
        def send(kind: Any, args: tuple[Any, ...]) -> None:
            emit(Message(job, kind, args))

        try:
            return Finished(job, call(job, EventReporter(send)))
        except UserError as error:
            return Crashed(job, str(error), user_error=True)
        except Exception as error:
            with suppress(OSError), open_log(job.log) as file:
                traceback.print_exc(file=file)
            said = crash(job, error)
            return Crashed(job, said.reason, disk_full=said.disk_full)


Tell = Callable[[str], None]
"""Takes a line for the user."""


def _slurm(options: Path | None, tell: Tell) -> Executor:
    from studies.execution.slurm import Slurm

    return FileExecutor(Slurm.of(options, tell))


def _ray(options: Path | None, tell: Tell) -> Executor:
    from studies.execution.ray_cluster import RayCluster

    return FileExecutor(RayCluster.of(options, tell))


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "inline": Inline,
    "processes": lambda: FileExecutor(Processes()),
}
SCHEDULERS: dict[str, Callable[[Path | None, Tell], Executor]] = {"slurm": _slurm, "ray": _ray}
"""Executors of clusters: trials outlive the driver, and a file can hold options."""
SCHEDULED_JOBS = 32
"""Trials that are in a cluster's queue or run there at once, unless ``--jobs`` says how many."""


def executor(name: str, options: Path | None = None, tell: Tell = lambda line: None) -> Executor:
    """The executor of a name, with the options of a cluster in a file. Raises `UserError` with the names that exist."""
    names = [*EXECUTORS, *SCHEDULERS]
    if name not in names:
        raise UserError(f"no executor '{name}'{nearest(name, names)}; there are: {', '.join(names)}")
    if name in SCHEDULERS:
        return SCHEDULERS[name](options, tell)
    if options is not None:
        raise UserError(
            f"--cluster {options}: the executor '{name}' has no options; those of {', '.join(SCHEDULERS)} do"
        )
    return EXECUTORS[name]()
