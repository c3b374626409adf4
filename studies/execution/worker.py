"""One trial in a process of its own: ``python -m studies.execution.worker FOLDER`` is all that an executor starts.

The folder holds the job, takes its events, and says when to stop (`studies.execution.job_folder`). Exit codes: 0, there
is a result; 2, the user has to put something right; 4, the trial crashed; 74, a disk is full; 130, it was interrupted.

Where a scheduler runs the worker (`pipeline.run.leaving`), the first SIGTERM asks the trial to leave. The worker then
ends without an outcome, since the scheduler knows why: with 75 if the trial came further than it was when the worker
began, else with 130.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline.errors import FAULT, INTERRUPTED, USER_ERROR, Fault, UserError
from pipeline.faults import disk_full, in_words, is_disk_full
from pipeline.run.leaving import LEFT, Leaving, ask_to_leave, asked_to_leave, can_leave
from pipeline.run.outcome import TrialOutcome
from studies.execution.job_folder import HEARTBEAT_SECONDS, JobFolder, OutcomeFile
from studies.execution.jobs import QUIET_LIMIT, EventReporter, Job, MessageKind, Send

DISK_FULL = 74
"""Exit code, EX_IOERR of sysexits.h: on a full disk not even the outcome can be written."""
WATCH_SECONDS = 1.0
"""Between two looks for ``cancel``."""
LEAVE_SECONDS = 5.0
"""How long a worker may take to stop whose folder is no longer its own: another worker may have the trial already."""
STOP_SECONDS = 60.0
"""The same for one that was cancelled. An interrupt can be lost in a destructor, or wait for C code that hangs."""
TAKEN = "its folder was taken away"
NOBODY = ("", 0)
"""Who works where a file server does not show ``alive`` for a moment."""
STOP = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Interrupts the trial, as Ctrl-C would."""


def call(job: Job, reporter: EventReporter) -> TrialOutcome:
    """Run the trial in this process."""
    os.environ["OMP_NUM_THREADS"] = str(job.config.runtime.threads)  # for libraries that are imported from here on
    module, _, function = job.trial.partition(":")
    run_trial = getattr(importlib.import_module(module), function)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(job.config.runtime.threads)
    outcome: TrialOutcome = run_trial(job.config, job.layout, reporter, until=job.until)
    return outcome


def crash(job: Job, error: BaseException) -> OutcomeFile:
    """An exception in words, and whether the user can put it right or a disk is full."""
    try:
        if isinstance(error, UserError):
            return OutcomeFile.without_result("crashed", str(error), user_error=True)
        if is_disk_full(error):
            return OutcomeFile.without_result("crashed", str(disk_full(error, job.layout.root)), disk_full=True)
        return OutcomeFile.without_result("crashed", in_words(error))
    except Exception:  # of a message that cannot be made
        return OutcomeFile.without_result("crashed", type(error).__name__)


def open_log(path: Path) -> Any:
    """The log of a trial, to append to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def work(path: Path) -> int:
    """Run the job in a folder, and return the exit code. One line on standard error says why nothing was run."""
    folder = JobFolder(path)
    folder.refresh()
    mark = folder.mark()  # before the lock: of a folder that is replaced meanwhile, the lock may be that of the old one
    try:
        with folder.hold():
            return _work(folder, mark)
    except UserError as error:  # another worker has it
        print(error, file=sys.stderr)
        return USER_ERROR


def _work(folder: JobFolder, mark: tuple[int, int] | None) -> int:
    try:
        content = folder.read()
        job = content.job(folder.path)
    except (UserError, Fault) as error:
        print(error, file=sys.stderr)
        refused = OutcomeFile.without_result("crashed", str(error), user_error=isinstance(error, UserError))
        with suppress(OSError):
            _publish(folder, mark, refused)
        return _exit_code(refused)
    os.environ.update(content.environment)
    advance, watch = _Advance(), Watch(folder, mark, shared=content.outlives)
    outcome = _outcome(folder, job, watch, advance)
    if outcome is None:
        return LEFT if advance.made else INTERRUPTED
    if watch.reason == TAKEN:
        return INTERRUPTED
    try:
        _publish(folder, mark, outcome.model_copy(update={"work": content.work}))
    except OSError as error:
        print(f"the outcome could not be written: {error}", file=sys.stderr)
        outcome = crash(job, error)
    return _exit_code(outcome)


def _publish(folder: JobFolder, mark: tuple[int, int] | None, outcome: OutcomeFile) -> None:
    if mark is not None and folder.mark() == mark:  # else it is another job's folder by now
        folder.end(outcome)


def _outcome(folder: JobFolder, job: Job, watch: Watch, advance: _Advance) -> OutcomeFile | None:
    """None of a trial that was asked to leave: whatever ended it then is no fault of its own."""
    limit = min(QUIET_LIMIT, job.config.runtime.hang_minutes * 60 / 4)
    try:
        if (reason := watch.look()) is not None:  # while the job waited in a queue
            return OutcomeFile.without_result("interrupted", reason)
        folder.begin()
        with folder.events() as send, _output_to(job.log), watch:
            return OutcomeFile.of(call(job, EventReporter(advance.noting(send), limit)), job.layout.root)
    except KeyboardInterrupt as error:
        advance.made |= isinstance(error, Leaving)
        if watch.reason is None and asked_to_leave():
            return None
        return OutcomeFile.without_result("interrupted", watch.reason or "stopped by a signal")
    except BaseException as error:
        return None if asked_to_leave() else crash(job, error)


@dataclass
class _Advance:
    """Whether a trial has come further than it was when its process began."""

    made: bool = False

    def noting(self, send: Send) -> Send:
        """Takes note of stages that are built."""

        def noted(kind: MessageKind, args: tuple[Any, ...]) -> None:
            self.made |= kind == "stage" and args[1] == "built"
            send(kind, args)

        return noted


class Watch(threading.Thread):
    """Renews ``alive``, and interrupts the trial when it is cancelled or when its folder was taken away."""

    def __init__(self, folder: JobFolder, mark: tuple[int, int] | None, *, shared: bool) -> None:
        super().__init__(name="watch", daemon=True)
        self._folder, self._mark, self._shared = folder, mark, shared
        self._mine = (socket.gethostname(), os.getpid())
        self._over = threading.Event()
        self.reason: str | None = None

    def __enter__(self) -> None:
        signal.signal(STOP, _interrupt)
        self.start()

    def __exit__(self, *_: object) -> None:
        signal.signal(STOP, signal.SIG_IGN)  # what has ended can no longer be interrupted
        self._over.set()

    def run(self) -> None:
        beaten = time.monotonic()
        while self.reason is None and not self._over.wait(WATCH_SECONDS):
            with suppress(OSError):  # a server that is away for a moment
                self.reason = self.look() or self._superseded()
                if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
                    beaten = time.monotonic()
                    self._folder.beat(shared=self._shared)
        if self.reason is not None and not self._over.is_set():
            os.kill(os.getpid(), STOP)
            if not self._over.wait(LEAVE_SECONDS if self.reason == TAKEN else STOP_SECONDS):
                os._exit(INTERRUPTED)

    def look(self) -> str | None:
        """Why the worker is to stop, or None."""
        return TAKEN if self._folder.mark() != self._mark else self._folder.cancelled()

    def _superseded(self) -> str | None:
        """Another worker has begun the job: a lock need not hold across machines that lost sight of each other."""
        return TAKEN if self._folder.worker_process not in (self._mine, NOBODY) else None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _exit_code(outcome: OutcomeFile) -> int:
    if outcome.kind == "finished":
        return 0
    if outcome.kind == "interrupted":
        return INTERRUPTED
    return USER_ERROR if outcome.user_error else DISK_FULL if outcome.disk_full else FAULT


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send what libraries print, also from C, and tracebacks to the trial's log: the terminal belongs to the
    display."""
    with open_log(path) as file:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.enable(file)
        try:
            yield
        except (KeyboardInterrupt, UserError):
            raise
        except BaseException:
            with suppress(OSError):
                traceback.print_exc()
            raise
        finally:
            with suppress(OSError):  # the disk of the log may be full
                sys.stdout.flush()
                sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """The command. A second signal ends the process at once; where the trial can leave, a third."""
    if len(arguments) != 1:
        print("usage: python -m studies.execution.worker FOLDER", file=sys.stderr)
        return USER_ERROR

    def stop(number: int, frame: FrameType | None) -> None:
        if can_leave() and not asked_to_leave():
            ask_to_leave()
            if asked_to_leave():  # else the disk is full
                return
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        return work(Path(arguments[0]).absolute())
    except KeyboardInterrupt:  # before the trial began, or after it ended
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
