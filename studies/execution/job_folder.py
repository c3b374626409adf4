"""The folder of a job: all that a driver and a worker tell each other, on this machine or through a shared file system.

    job.json        what to run; written once by the driver, so that its inode and time mark this job
    events.jsonl    what the trial reports, one line an event; the worker appends whole lines
    alive           host and process of the worker; its time is renewed every few seconds
    outcome.json    how the job ended; renamed into place
    cancel          why the worker is to stop; the driver creates it
    worker          the name by which the executor knows the worker, such as a number in a queue
    lock            held by the worker (flock)

The time of `alive` is only compared with what it was before, never with a clock: machines need not agree on the time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from pipeline.config.trial import TrialConfig, canonical_json
from pipeline.errors import Damaged, Fault, Gone, UserError
from pipeline.run.layout import Layout, read_sealed, sealed
from pipeline.run.outcome import TrialOutcome
from pipeline.run.store import Artifact
from studies.execution.jobs import Crashed, Finished, Interrupted, Job, Message, Send

FORMAT: Literal[1] = 1
"""Of ``job.json`` and ``outcome.json``; a larger number is that of a newer program."""
HEARTBEAT_SECONDS = 2.0
PULSES = 4
"""Without a heartbeat for so many times its interval, a worker on another machine counts as dead."""
LOCK_SECONDS = 5.0
"""How long a worker waits for the lock: a driver that looks whether it is held has it for a moment."""
LEASE_SECONDS = 120.0
"""The same where another machine had the lock: a file server keeps the lock of a machine that was lost for 90 s."""
REASON_LENGTH = 2000
"""Characters; messages of exceptions can hold a whole batch."""
POLL_SECONDS = 0.05
ASIDE = ".removed-"
"""Begin of the names of folders that are being deleted."""
NUMBER = (int, float)
ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "stage": (str, str, str),
    "progress": (str, NUMBER, NUMBER, str),
    "metrics": (NUMBER, dict),
    "follow": (str,),
    "warn": (str,),
}
"""Types of what each kind of event says."""
Content = TypeVar("Content", bound=BaseModel)


class JobFile(BaseModel):
    """Content of ``job.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal[1] = FORMAT
    label: str
    trial: str
    config: dict[str, Any]
    root: str
    log: str
    until: str | None
    outlives: bool
    """The worker goes on when its driver ends."""
    environment: dict[str, str]
    """Variables that the worker sets before it computes."""

    @classmethod
    def of(cls, job: Job, *, outlives: bool, environment: Mapping[str, str]) -> Self:
        return cls(
            label=job.label,
            trial=job.trial,
            config=job.config.model_dump(mode="json"),
            root=str(job.layout.root),
            log=str(job.log),
            until=job.until,
            outlives=outlives,
            environment=dict(environment),
        )

    def is_for(self, job: Job) -> bool:
        """Whether this is what would be written for a job, but for where it runs."""
        return self.work == _work_of(job)

    @property
    def work(self) -> str:
        """Digest of what is to be done, wherever that is."""
        content = self.model_dump(exclude={"outlives", "environment"})
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    def job(self, folder: Path) -> Job:
        """The job itself. Raises `UserError` where this version of the program understands the configuration otherwise
        than the one that wrote it."""
        try:
            config = TrialConfig.model_validate(self.config)
        except ValidationError:
            config = None
        if config is None or config.model_dump(mode="json") != self.config:
            raise UserError(
                f"{folder / 'job.json'} holds a configuration of another version of this program; driver and workers"
                " need the same version"
            )
        return Job(0, self.label, config, Layout(Path(self.root)), self.trial, Path(self.log), folder, self.until)


class ArtifactFile(BaseModel):
    """An artifact within ``outcome.json``; `path` is relative to the output root."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    stage: str
    key: str
    path: str
    digest: str
    finished: str | None


class ResultFile(BaseModel):
    """A trial's result within ``outcome.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    artifacts: dict[str, ArtifactFile]
    status: str
    reason: str | None
    steps: int
    summary: dict[str, FiniteFloat]
    cost: dict[str, FiniteFloat]
    execution: dict[str, str]


class OutcomeFile(BaseModel):
    """Content of ``outcome.json``: a result, or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal[1] = FORMAT
    kind: Literal["finished", "crashed", "interrupted"]
    work: str = ""
    """`JobFile.work` of the job: a worker on a machine that sees an older folder may write into a newer one."""
    result: ResultFile | None = None
    reason: str = ""
    user_error: bool = False
    disk_full: bool = False

    @classmethod
    def of(cls, result: TrialOutcome, root: Path) -> Self:
        artifacts = {
            name: ArtifactFile(
                stage=one.stage,
                key=one.key,
                path=one.path.relative_to(root).as_posix(),
                digest=one.digest,
                finished=one.finished,
            )
            for name, one in result.artifacts.items()
        }
        numbers = {"summary": dict(result.summary), "cost": dict(result.cost), "execution": dict(result.execution)}
        whole = {"artifacts": artifacts, "status": result.status, "reason": result.reason, "steps": result.steps}
        return cls(kind="finished", result=ResultFile.model_validate({**whole, **numbers}))

    @classmethod
    def without_result(
        cls,
        kind: Literal["crashed", "interrupted"],
        reason: str,
        *,
        user_error: bool = False,
        disk_full: bool = False,
    ) -> Self:
        """One without a result; its reason is made fit for a file and a terminal."""
        return cls(kind=kind, reason=printable(reason), user_error=user_error, disk_full=disk_full)

    def event(self, job: Job) -> Finished | Crashed | Interrupted:
        """The event that it stands for."""
        if self.kind == "interrupted":
            return Interrupted(job, self.reason)
        if self.result is None:
            return Crashed(job, self.reason or "it left no result", self.user_error, self.disk_full)
        return Finished(job, _result(self.result, job.layout.root))


@dataclass(frozen=True)
class JobFolder:
    """Paths of one job, and what both sides do with them."""

    path: Path

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def alive_file(self) -> Path:
        return self.path / "alive"

    @property
    def outcome_file(self) -> Path:
        return self.path / "outcome.json"

    @property
    def cancel_file(self) -> Path:
        return self.path / "cancel"

    @property
    def worker_file(self) -> Path:
        return self.path / "worker"

    # What the driver does.

    def create(self, job: Job, *, outlives: bool, environment: Mapping[str, str]) -> None:
        """Write a job for a worker to find."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = JobFile.of(job, outlives=outlives, environment=environment)
        _put(self.job_file, sealed(content.model_dump()))

    def name_worker(self, name: str) -> None:
        """Note by which name the executor knows the worker."""
        _put(self.worker_file, name)

    @property
    def worker(self) -> str:
        """That name; empty where there is none."""
        with suppress(OSError):
            return self.worker_file.read_text("utf-8")
        return ""

    def cancel(self, reason: str) -> None:
        """Ask the worker to stop."""
        with suppress(OSError):  # the folder is gone, or the disk is full
            _put(self.cancel_file, reason)

    def outcome(self, job: Job) -> Finished | Crashed | Interrupted | None:
        """How the job ended, or None, also for what another job's worker wrote. A damaged outcome is a crash."""
        try:
            content = _read(self.outcome_file, OutcomeFile) if self.outcome_file.exists() else None
        except (Damaged, UserError) as error:
            return None if isinstance(error, Gone) else Crashed(job, str(error))
        except (Fault, OSError):  # a file server that is away for a moment
            return None
        return content.event(job) if content is not None and content.work in ("", _work_of(job)) else None

    def refresh(self) -> None:
        """Have a file server tell what is in the folder now: names that were not there a moment ago are remembered."""
        for path in (self.path.parent, self.path):
            with suppress(OSError):
                list(path.iterdir())

    def remove(self) -> None:
        """Delete the folder, all at once: a worker that has it open notices."""
        aside = self.path.with_name(f"{ASIDE}{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):
            os.replace(self.path, aside)
        shutil.rmtree(aside, ignore_errors=True)  # what is open on a file server stays for now: see `sweep`

    def is_held(self) -> bool:
        """Whether a worker holds the lock."""
        if not self.path.exists():
            return False
        try:
            with self._lock(0):
                return False
        except Timeout:
            return True

    @property
    def is_elsewhere(self) -> bool:
        """Whether the worker is, or was, on another machine."""
        host, _ = self.worker_process
        return bool(host) and host != socket.gethostname()

    def is_beating(self) -> bool:
        """Whether a worker on another machine renews `alive`: its lock may not be known here. Takes a few heartbeats to
        find out."""
        before, deadline = self.pulse(), time.monotonic() + PULSES * HEARTBEAT_SECONDS
        while self.is_elsewhere and time.monotonic() < deadline:
            if self.pulse() != before:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def pulse(self) -> int:
        """The time of `alive`; 0 where there is none."""
        with suppress(OSError), self.alive_file.open() as file:  # to open a file asks the server, where there is one
            return os.fstat(file.fileno()).st_mtime_ns
        return 0

    @property
    def worker_process(self) -> tuple[str, int]:
        """Host and number of the process that works, or last worked, on the job; empty and 0 where there was none."""
        with suppress(OSError, ValueError):
            host, pid = self.alive_file.read_text("utf-8").split()
            return host, int(pid)
        return "", 0

    # What both do.

    def read(self) -> JobFile:
        """What to run. Raises `UserError` for a newer format, `Damaged`, and `Gone` where there is no job."""
        return _read(self.job_file, JobFile)

    # What the worker does.

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. Raises `UserError` where another worker holds it, or there is no job."""
        lock, began = self._lock(0), time.monotonic()
        self.refresh()
        while True:
            if not self.job_file.exists():
                raise UserError(f"{self.path} is not the folder of a job: it has no job.json")
            with suppress(Timeout):
                lock.acquire()
                break
            if time.monotonic() - began > (LEASE_SECONDS if self.is_elsewhere else LOCK_SECONDS):
                host, pid = self.worker_process
                raise UserError(f"{self.path} is being worked on by process {pid} on {host or 'another host'}")
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()

    def mark(self) -> tuple[int, int] | None:
        """What tells this job from a later one in a folder of the same name; None where the folder has gone."""
        try:
            stat = self.job_file.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return None
            raise
        return stat.st_ino, stat.st_mtime_ns

    def begin(self) -> None:
        """Say who works; an earlier worker's outcome no longer counts."""
        self.outcome_file.unlink(missing_ok=True)
        _put(self.alive_file, f"{socket.gethostname()} {os.getpid()}")

    def beat(self, *, shared: bool) -> None:
        """Renew `alive`; in a `shared` folder also have the events reach the file server, which could take half a
        minute."""
        os.utime(self.alive_file)
        if shared:
            file = os.open(self.events_file, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def cancelled(self) -> str | None:
        """Why the worker is to stop, or None."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.cancel_file.read_text("utf-8", "replace").strip() or "cancelled"
        return None

    @contextmanager
    def events(self) -> Iterator[Send]:
        """Appends events; a line that an earlier worker left half written is closed first."""
        file = os.open(self.events_file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                _write(file, b"\n")
            yield lambda kind, args: _write(file, json.dumps([kind, *args], default=_plain).encode() + b"\n")
        finally:
            os.close(file)

    def end(self, outcome: OutcomeFile) -> None:
        """Publish how the job ended."""
        _put(self.outcome_file, sealed(outcome.model_dump()))

    def _lock(self, seconds: float) -> FileLock:
        return FileLock(self.path / "lock", timeout=seconds)


@dataclass
class EventReader:
    """Reads the events of a job from the beginning. Lines that are not whole yet wait; damaged ones are passed over."""

    path: Path
    offset: int = 0
    followed: set[Path] = field(default_factory=set)
    """A worker that is started again names its metrics file again."""

    def read(self, job: Job) -> list[Message]:
        """What is new."""
        try:
            with self.path.open("rb") as file:
                self.offset = min(self.offset, os.fstat(file.fileno()).st_size)  # of a file that was cut off
                file.seek(self.offset)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:  # not there yet, or a file server that is away for a moment
            return []
        self.offset += len(whole) + 1 if whole else 0
        return [message for line in whole.splitlines() if (message := self._message(job, line)) is not None]

    def catch_up(self, job: Job) -> list[Message]:
        """What is new, of progress and metrics only the last: what a driver needs that takes over a job."""
        messages = self.read(job)
        last = {message.kind: message for message in messages}
        return [one for one in messages if one.kind not in ("progress", "metrics") or one is last[one.kind]]

    def _message(self, job: Job, line: bytes) -> Message | None:
        try:
            kind, *args = json.loads(line)
            types = ARGUMENTS.get(kind)
            if types is None or len(types) != len(args) or not all(map(isinstance, args, types)):
                return None
            if kind == "metrics" and not all(isinstance(value, NUMBER) for value in args[1].values()):
                return None
            if kind == "follow":
                path = Path(args[0])
                if path in self.followed:
                    return None
                self.followed.add(path)
                args = [path]
        except (ValueError, TypeError, RecursionError):
            return None
        return Message(job, kind, tuple(args))


def sweep(jobs: Path) -> None:
    """After a study: delete the folders of jobs that nobody works on, and stop workers that nobody wants any more."""
    for path in sorted(jobs.glob("*")) if jobs.exists() else []:
        folder = JobFolder(path)
        if path.name.startswith(ASIDE):
            shutil.rmtree(path, ignore_errors=True)
        elif folder.is_held():
            folder.cancel("no trial of the study needs it any more")
        else:
            folder.remove()
    with suppress(OSError):
        jobs.rmdir()


def printable(text: str) -> str:
    """A text of at most `REASON_LENGTH` characters that every file and terminal takes."""
    short = text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."
    return "".join(one if one.isprintable() or one == "\n" else " " if one.isspace() else "?" for one in short)


def _work_of(job: Job) -> str:
    return JobFile.of(job, outlives=False, environment={}).work


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _put(path: Path, text: str) -> None:
    """Replace a file in one step. The disk is not waited for: after a power cut the job starts again anyway."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _read(path: Path, model: type[Content]) -> Content:
    content = read_sealed(path)
    written = content.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise UserError(
            f"{path} has format {written}, and this program knows formats up to {FORMAT}: use the newer version of the"
            " program that wrote it"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        raise Damaged(path, f"{'.'.join(map(str, fault['loc'])) or 'content'}: {fault['msg']}") from None


def _result(content: ResultFile, root: Path) -> TrialOutcome:
    artifacts = {
        name: Artifact(one.stage, one.key, root / one.path, one.digest, {}, one.finished)
        for name, one in content.artifacts.items()
    }
    return TrialOutcome(
        artifacts,
        content.status,
        content.reason,
        content.steps,
        content.summary,
        content.cost,
        content.execution,
    )


def _plain(value: Any) -> Any:
    """What JSON has no word for: a path, or a number of a library."""
    return str(value) if isinstance(value, Path) else float(value)
