"""One task of a hand in a process of its own: run it, keep its status file, write the record."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

from pipeline.errors import FAULT, INTERRUPTED, USER_ERROR, UserError
from pipeline.faults import disk_full, in_words, is_disk_full
from pipeline.run.layout import Layout, StudyFolder, record_text, write_atomic
from pipeline.run.leaving import LEFT, asked_to_leave
from pipeline.run.outcome import TrialOutcome
from pipeline.run.store import BuiltElsewhere
from studies.definition.design import Cell
from studies.execution.priority import give_way
from studies.execution.records import record_of
from studies.execution.status import StatusFile

DISK_FULL = 74
"""Exit code, EX_IOERR of sysexits.h: no other trial would fare better."""


@dataclass(frozen=True)
class Job:
    """All that a process needs to know of its task."""

    study: str
    profile: str
    layout: Layout
    folder: StudyFolder
    trials: str
    """Module with `run_trial` and `environment`."""
    cell: Cell
    until: str | None
    label: str
    lock: str
    """Name of the task's lock, which the hand holds."""
    gpus: str = ""
    """For ``CUDA_VISIBLE_DEVICES``; empty where there is nothing to choose."""

    @property
    def name(self) -> str:
        """Under which its files stand."""
        name = self.folder.cell_name(self.cell.arm, self.cell.seed)
        return name if self.until is None else f"{name}.shared"


def run_job(job: Job, tell: Callable[[], None] = lambda: None) -> int:
    """Run a task in this process. Returns 0 when it has ended; `LEFT` where it is to be tried again, since it left or
    another process has a part of it; else an exit code that names the kind of fault, whose words are in the status."""
    status = StatusFile(job.folder.status_file(job.name), job.label, job.until is not None, tell, job.lock)
    try:
        outcome = _run(job, status)
    except BuiltElsewhere:
        status.end("elsewhere")
        return LEFT
    except KeyboardInterrupt:
        status.end("interrupted")
        if asked_to_leave():
            return LEFT
        raise
    except UserError as error:
        status.end("failed", str(error))
        return USER_ERROR
    except Exception as error:
        if asked_to_leave():  # whatever ended it then is no fault of its own
            return LEFT
        if is_disk_full(error):
            status.end("failed", str(disk_full(error, job.layout.root)))
            return DISK_FULL
        with suppress(OSError):
            traceback.print_exc()
        status.end("failed", in_words(error))
        return FAULT
    status.end(outcome.status, outcome.reason)
    return 0


def _run(job: Job, status: StatusFile) -> TrialOutcome:
    threads = job.cell.config.runtime.threads
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for libraries that are imported from here on
    module = importlib.import_module(job.trials)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    outcome: TrialOutcome = module.run_trial(job.cell.config, job.layout, status, until=job.until, wait=False)
    if job.until is None:
        record = record_of(job.study, job.profile, job.cell, job.layout, module.environment(), outcome)
        write_atomic(job.folder.trial_file(job.cell.arm, job.cell.seed), record_text(record))
    return outcome


def work(job: Job) -> None:
    """Body of a process that a hand has started, with which it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the hand decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if job.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpus
    give_way()
    threading.Thread(target=_end_with_hand, daemon=True).start()
    with output_to(job.folder.log_file(job.name)):
        code = run_job(job)
    raise SystemExit(code)


def _end_with_hand() -> None:
    """End this process when the hand ends, in whatever way: its end of a pipe closes even after SIGKILL."""
    hand = parent_process()
    if hand is not None:
        hand.join()
        os._exit(INTERRUPTED)


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send what libraries print, also from C, and tracebacks to a log, which goes again where it stays empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.enable(file)
        try:
            yield
        finally:
            with suppress(OSError):  # the disk of the log may be full
                sys.stdout.flush()
                sys.stderr.flush()
                if path.stat().st_size == 0:
                    path.unlink()
