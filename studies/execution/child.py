"""One task of a hand in a process of its own: run it, keep its status file, write the record."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from pathlib import Path

from pipeline.errors import FAULT, INTERRUPTED, USER_ERROR, UserError
from pipeline.run.progress import LEFT, TrialOutcome, asked_to_leave
from pipeline.run.store import BuiltElsewhere
from pipeline.wording import in_words
from studies.execution.agenda import Task
from studies.execution.records import write_record
from studies.execution.status import StatusFile
from studies.faults import disk_full, is_disk_full

DISK_FULL = 74
"""Exit code, EX_IOERR of sysexits.h: no other trial would fare better."""


def run_task(task: Task, notify: Callable[[], None] = lambda: None) -> int:
    """Run a task in this process. Returns 0 when it has ended; `LEFT` where it is to be tried again, since it left or
    another process has a part of it; else an exit code that names the kind of fault, whose words are in the status."""
    run = task.run
    status = StatusFile(run.folder.status_file(task.name), task.label, task.until is not None, notify, task.lock)
    try:
        outcome = _run(task, status)
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
            status.end("failed", str(disk_full(error)))
            return DISK_FULL
        with suppress(OSError):
            traceback.print_exc()
        status.end("failed", in_words(error))
        return FAULT
    status.end(outcome.status, outcome.reason)
    return 0


def _run(task: Task, status: StatusFile) -> TrialOutcome:
    run, cell, threads = task.run, task.cell, task.cell.config.runtime.threads
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for libraries that are imported from here on
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    outcome: TrialOutcome = run.module.run_trial(cell.config, run.layout, status, until=task.until, wait=False)
    if task.until is None:
        write_record(run, cell, outcome)
    return outcome


def work(task: Task, gpus: str) -> None:
    """Body of a process that a hand has started, with which it ends. `gpus` is for ``CUDA_VISIBLE_DEVICES``; empty
    where there is nothing to choose."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the hand decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    threading.Thread(target=_end_with_hand, daemon=True).start()
    with output_to(task.run.folder.log_file(task.name)):
        code = run_task(task)
    raise SystemExit(code)


def _end_with_hand() -> None:
    """End this process when the hand ends, in whatever way: its end of a pipe closes even after SIGKILL."""
    hand = parent_process()
    if hand is not None:
        hand.join()
        os._exit(INTERRUPTED)


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send all that libraries print, also from C, and tracebacks to a log, which is deleted where it stays empty."""
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
