"""Workers on this machine: one process per trial, so that a crash or an exhausted memory takes one trial with it and no
more. They end with their driver."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeline.config.trial import TrialConfig
from pipeline.errors import INTERRUPTED
from pipeline.faults import disk_full
from pipeline.models.cpu import HUGE_PAGES
from pipeline.resources.machine import grow_segments, visible_gpus
from studies.execution.file_executor import GRACE_SECONDS, Ended, WorkerState
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Job
from studies.execution.priority import give_way
from studies.execution.worker import DISK_FULL, work

PRELOAD = [
    "studies.execution.processes",
    "pipeline.trial",
    "pipeline.training.trainer",
    "accelerate",
    "transformers.models.qwen2.modeling_qwen2",
]
"""Imported once by the server that workers are forked from, so that a worker starts in milliseconds."""

STARTS = 3
"""Times that a process is tried to be started."""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    gpus: list[str]
    root: Path


class Processes:
    """The launcher of this machine."""

    outlives = False
    lag_seconds = 0.0

    def __init__(self) -> None:
        grow_segments()  # before any process of ours imports torch
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        self._gpus: Counter[str] | None = None
        self._workers: dict[str, _Worker] = {}
        self._context: Any = get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(PRELOAD)

    def start(self, job: Job, folder: JobFolder) -> str:
        """Start a process, with GPUs of its own where there is a choice."""
        if job.config.runtime.device == "cpu":
            for name, value in HUGE_PAGES.items():  # read when a process begins, and inherited from this one
                os.environ.setdefault(name, value)
        gpus = self._take_gpus(job.config)
        folder.create(job, outlives=False, environment={"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
        process = self._started(job, folder)
        self._workers[str(process.pid)] = _Worker(process, gpus, job.layout.root)
        return str(process.pid)

    def _started(self, job: Job, folder: JobFolder) -> BaseProcess:
        """A process that works on a folder. A fork server that is killed meanwhile is replaced."""
        for left in reversed(range(STARTS)):
            process: BaseProcess = self._context.Process(
                target=_work, args=(str(folder.path),), name=job.label, daemon=True
            )
            try:
                process.start()
                break
            except (EOFError, ConnectionError):
                if not left:
                    raise
        return process

    def state(self, name: str) -> WorkerState:
        """Running, or in words how the process ended."""
        if name not in self._workers:
            return "unknown"
        worker = self._workers[name]
        if worker.process.is_alive():
            return "running"
        return _ended(worker.process.exitcode, worker.root)

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Until a process ends."""
        sentinels = [self._workers[name].process.sentinel for name in names if name in self._workers]
        if sentinels:
            connection.wait(sentinels, timeout=seconds)
        else:
            time.sleep(seconds)

    def end(self, names: Sequence[str], *, hung: bool = False) -> None:
        """By SIGTERM, at last by SIGKILL; before, SIGABRT has one that hung write the traceback of every thread."""
        processes = [self._workers[name].process for name in names if name in self._workers]
        if hung:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGABRT)  # type: ignore[arg-type]
                process.join(GRACE_SECONDS)
        _end(processes)

    def forget(self, name: str) -> None:
        """See that the process ends, and free its GPUs."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.process.join(GRACE_SECONDS)
            _end([worker.process])
            for gpu in worker.gpus:
                self._gpus[gpu] -= 1  # type: ignore[index]

    def _take_gpus(self, config: TrialConfig) -> list[str]:
        """The least used GPUs, one for each process of the trial; none on a machine where there is nothing to
        choose."""
        if config.runtime.device == "cpu":
            return []
        if self._gpus is None:
            self._gpus = Counter(dict.fromkeys(visible_gpus(), 0))
        if len(self._gpus) < 2:
            return []
        taken = sorted(self._gpus, key=self._gpus.__getitem__)[: config.runtime.processes]
        self._gpus.update(taken)
        return taken


def _work(folder: str) -> None:
    """Body of a worker process. Nothing but the path comes from the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    give_way()
    threading.Thread(target=_die_with_driver, daemon=True).start()
    raise SystemExit(work(Path(folder)))


def _die_with_driver() -> None:
    """End this process when the driver ends, in whatever way: its end of a pipe closes even after SIGKILL."""
    driver = parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _ended(code: int | None, root: Path) -> Ended:
    if code == DISK_FULL:
        return Ended(str(disk_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), root)), disk_full=True)
    if code == INTERRUPTED:
        return Ended("its job folder was taken away")
    return Ended(_exit_in_words(code))


def _exit_in_words(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            hint = " (often: out of memory)" if -code == signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{hint}"
    return f"the process ended with exit code {code} and no result"
