"""How trials are carried out: in this process, or one process each. Knows neither Optuna nor MLflow.

An executor takes jobs from the driver whenever it has room and hands back events. Trials never see the
driver's files; what they have to say goes through a `Reporter`, as messages.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.config.names import nearest
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.faults import disk_full, in_words, is_disk_full
from pipeline.models.cpu import HUGE_PAGES
from pipeline.resources.machine import grow_segments, visible_gpus
from pipeline.run.layout import Layout
from pipeline.run.progress import StageState
from pipeline.run.store import Artifact
from studies.execution.priority import give_way

PRELOAD = [
    "studies.execution.executors",
    "pipeline.trial",
    "pipeline.training.trainer",
    "accelerate",
    "transformers.models.qwen2.modeling_qwen2",
]
"""Imported once by the server that workers are forked from, so that a worker starts in milliseconds."""
QUIET_SECONDS = 0.25
"""Between two progress messages of a worker; what comes in between is dropped or merged."""
GRACE_SECONDS = 5.0
POLL_SECONDS = 1.0
"""Between two looks at who has been silent for too long."""


class TrialResult(Protocol):
    """What a trial function returns (see `pipeline.trial`)."""

    @property
    def artifacts(self) -> Mapping[str, Artifact]: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def summary(self) -> Mapping[str, float]: ...
    @property
    def cost(self) -> Mapping[str, float]: ...
    @property
    def execution(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Job:
    """One call of a trial function, by name so that any process can make it."""

    number: int
    label: str
    config: TrialConfig
    layout: Layout
    trial: str
    """``module:function`` with the signature of `pipeline.trial.run_trial`."""
    log: Path
    """Where output and tracebacks of the trial go."""
    until: str | None = None


@dataclass(frozen=True)
class Message:
    """One call of a `Reporter` method inside a trial."""

    job: Job
    kind: Literal["stage", "progress", "metrics", "follow", "warn"]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Finished:
    """A trial has ended with an outcome, be it good or bad."""

    job: Job
    outcome: TrialResult


@dataclass(frozen=True)
class Crashed:
    """A trial ended without an outcome."""

    job: Job
    reason: str
    user_error: bool = False
    """The user has to put something right; repeating would not help."""
    disk_full: bool = False
    """No space was left; no other trial would fare better."""


Event = Message | Finished | Crashed
NextJob = Callable[[], Job | None]
"""Gives the next job, or None for nothing at present: asked again after every event."""


class Executor(Protocol):
    """Runs jobs until there are none. Events come in the caller's thread, through `emit`."""

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        """Have at most `slots` jobs at once. An exception from `emit`, or Ctrl-C, ends all running jobs."""


class EventReporter:
    """The `Reporter` of a trial: turns calls into messages and keeps frequent ones rare."""

    def __init__(self, send: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._send = send
        self._progressed = self._measured = 0.0
        self._values: dict[str, float] = {}

    def stage(self, name: str, state: StageState, detail: str = "") -> None:
        self._send("stage", (name, state, detail))

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if note or done >= total or now - self._progressed >= QUIET_SECONDS:
            self._progressed = now
            self._send("progress", (stage, done, total, note))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._values.update(values)
        now = time.monotonic()
        if now - self._measured >= QUIET_SECONDS:
            self._measured = now
            self._send("metrics", (step, self._values))
            self._values = {}

    def follow(self, path: Path) -> None:
        self._send("follow", (path,))

    def warn(self, message: str) -> None:
        self._send("warn", (message,))


class Inline:
    """One trial after the other in this process: for debugging, and where processes cannot be started."""

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        while (job := next_job()) is not None:
            emit(self._run(job, emit))

    def _run(self, job: Job, emit: Callable[[Event], None]) -> Event:
        def send(kind: Any, args: tuple[Any, ...]) -> None:
            emit(Message(job, kind, args))

        try:
            return Finished(job, _call(job, EventReporter(send)))
        except UserError as error:
            return Crashed(job, str(error), user_error=True)
        except Exception as error:
            with suppress(OSError), _open_log(job.log) as file:
                traceback.print_exc(file=file)
            return Crashed(job, *_crash(job, error))


class Processes:
    """One process per trial, so that a crash or an exhausted memory takes one trial with it and no more."""

    def __init__(self) -> None:
        grow_segments()  # before any process of ours imports torch
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        self._gpus: Counter[str] | None = None
        self._context: Any = get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(PRELOAD)

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        running: dict[Any, tuple[Job, BaseProcess]] = {}  # by the driver's end of the pipe
        heard: dict[Any, float] = {}
        held: dict[int, list[str]] = {}
        try:
            while True:
                while len(running) < slots and (job := next_job()) is not None:
                    held[job.number] = self._take_gpus(job.config)
                    pipe, process = self._start(job, held[job.number])
                    running[pipe], heard[pipe] = (job, process), time.monotonic()
                if not running:
                    return
                for ready in wait(list(running), timeout=POLL_SECONDS):
                    heard[ready] = time.monotonic()
                    self._pass_on(ready, _receive(ready, *running[ready]), running, held, emit)
                for silent in _silent(running, heard):
                    self._pass_on(silent, _end_silent(*running[silent]), running, held, emit)
        finally:
            _end([process for _, process in running.values()])

    def _pass_on(
        self,
        pipe: Any,
        event: Event,
        running: dict[Any, tuple[Job, BaseProcess]],
        held: dict[int, list[str]],
        emit: Callable[[Event], None],
    ) -> None:
        """Tell the driver; what has ended is no longer running, and its GPUs are free."""
        if not isinstance(event, Message):
            job, process = running.pop(pipe)
            _bury(process, job)
            for gpu in held.pop(job.number):
                self._gpus[gpu] -= 1  # type: ignore[index]
        emit(event)

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

    def _start(self, job: Job, gpus: list[str]) -> tuple[Connection, BaseProcess]:
        if job.config.runtime.device == "cpu":
            for name, value in HUGE_PAGES.items():  # read when a process begins, and inherited from this one
                os.environ.setdefault(name, value)
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(theirs, job, gpus), name=job.label, daemon=True)
        process.start()
        theirs.close()
        return ours, process


EXECUTORS: dict[str, Callable[[], Executor]] = {"inline": Inline, "processes": Processes}


def executor(name: str) -> Executor:
    """The executor of a name. Raises `UserError` with the names that exist."""
    if name not in EXECUTORS:
        raise UserError(f"no executor '{name}'{nearest(name, list(EXECUTORS))}; there are: {', '.join(EXECUTORS)}")
    return EXECUTORS[name]()


def _call(job: Job, relay: EventReporter) -> TrialResult:
    os.environ["OMP_NUM_THREADS"] = str(job.config.runtime.threads)  # for libraries that are imported from here on
    module, _, function = job.trial.partition(":")
    run_trial = getattr(importlib.import_module(module), function)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(job.config.runtime.threads)
    outcome: TrialResult = run_trial(job.config, job.layout, relay, until=job.until)
    return outcome


def _work(pipe: Connection, job: Job, gpus: list[str]) -> None:
    """Body of a worker process; it sees `gpus` alone, or all where there are none."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    give_way()
    threading.Thread(target=_die_with_driver, daemon=True).start()

    def send(kind: Any, args: tuple[Any, ...]) -> None:
        pipe.send((kind, args))

    with _output_to(job.log):
        try:
            result: tuple[str, tuple[Any, ...]] = ("finished", (_call(job, EventReporter(send)),))
        except UserError as error:
            result = ("crashed", (str(error), True, False))
        except BaseException as error:
            with suppress(OSError):
                traceback.print_exc()
            result = ("crashed", _crash(job, error))
        send(*result)
        pipe.close()


def _die_with_driver() -> None:
    """End this process when the driver ends, in whatever way: its end of a pipe closes even after SIGKILL."""
    driver = parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _silent(running: Mapping[Any, tuple[Job, BaseProcess]], heard: Mapping[Any, float]) -> list[Any]:
    """Pipes of trials that have said nothing for longer than they may."""
    now = time.monotonic()
    return [pipe for pipe, (job, _) in running.items() if now - heard[pipe] > job.config.runtime.hang_minutes * 60]


def _end_silent(job: Job, process: BaseProcess) -> Crashed:
    """End a trial that hangs. Its log then tells where it stood: the signal makes it write the traceback of every
    thread."""
    if process.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGABRT)
    process.join(GRACE_SECONDS)
    _end([process])
    return Crashed(job, f"no progress for {job.config.runtime.hang_minutes:g} min (runtime.hang_minutes): ended")


def _receive(pipe: Any, job: Job, process: BaseProcess) -> Event:
    try:
        kind, args = pipe.recv()
    except (EOFError, OSError):
        process.join()
        return Crashed(job, _exit_in_words(process.exitcode))
    if kind == "finished":
        return Finished(job, *args)
    return Crashed(job, *args) if kind == "crashed" else Message(job, kind, args)


def _bury(process: BaseProcess, job: Job) -> None:
    process.join(GRACE_SECONDS)
    _end([process])
    with suppress(OSError):
        if job.log.stat().st_size == 0:
            job.log.unlink()


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _crash(job: Job, error: BaseException) -> tuple[str, bool, bool]:
    """Reason, whether the user can put it right, and whether a disk is full (`Crashed`)."""
    if is_disk_full(error):
        return str(disk_full(error, job.layout.root)), False, True
    return in_words(error), False, False


def _exit_in_words(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            hint = " (often: out of memory)" if -code == signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{hint}"
    return f"the process ended with exit code {code} and no result"


def _open_log(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send what libraries print, also from C, to the trial's log: the terminal belongs to the display."""
    import faulthandler

    with _open_log(path) as file:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.enable(file)
        try:
            yield
        finally:
            with suppress(OSError):  # the disk of the log may be full
                sys.stdout.flush()
                sys.stderr.flush()
