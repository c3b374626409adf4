"""Run a function of a trial in several processes. They meet in a file, since a port would listen on every address.

The first process reports for all of them. They end together, and with their parent, however it ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe, connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from pipeline.errors import INTERRUPTED, USER_ERROR, UserError
from pipeline.models.loading import device_of
from pipeline.models.process import settle
from pipeline.run.leaving import LEFT, Leaving, can_leave
from pipeline.run.progress import Reporter
from pipeline.training.processes import MEETING

Work = Callable[[Any, Path, Reporter, Any], None]
GRACE_SECONDS = 2.0
"""How long processes may take to end when one of them has failed, and again when they are terminated."""
LINES = 8
"""Of a traceback, in the message."""
LOOPBACK = {
    f"{library}_SOCKET_IFNAME": name
    for _, name in socket.if_nameindex()
    if name in ("lo", "lo0")
    for library in ("GLOO", "NCCL")
}
"""Environment of the processes: what they say to each other does not leave the machine."""


class PipeReporter(Reporter):
    """The reporter of the first process: sends everything to the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        self._pipe.send(("progress", stage, done, total, note))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._pipe.send(("metrics", step, dict(values)))

    def follow(self, path: Path) -> None:
        self._pipe.send(("follow", path))

    def warn(self, message: str) -> None:
        self._pipe.send(("warn", message))


def launch(function: Work, cfg: Any, out: Path, reporter: Reporter, inputs: Any) -> None:
    """Run ``function(cfg, out, reporter, inputs)`` in `cfg.runtime.processes` processes until all have ended.

    Raises what the function raised for the user (`UserError`), `Leaving` where the trial has left, else `RuntimeError`
    with the end of the traceback.
    """
    count, meeting = cfg.runtime.processes, (out / ".meeting").absolute()
    meeting.unlink(missing_ok=True)  # of processes that were killed: it would name them
    readers, writers = zip(*(Pipe(duplex=False) for _ in range(count)), strict=True)
    refused: list[str] = []
    listener = threading.Thread(target=_listen, args=(readers, reporter, refused), daemon=True)
    work = (function, meeting, writers, cfg, out, inputs)
    processes = start_processes(_process, work, count, join=False, daemon=True)  # type: ignore[no-untyped-call]
    for writer in writers:
        writer.close()
    listener.start()
    try:
        while not processes.join(grace_period=GRACE_SECONDS):
            pass
    except ProcessRaisedException as error:
        end = "\n".join(str(error).strip().splitlines()[-LINES:])
        raise RuntimeError(f"process {error.error_index} of {count} failed:\n{end}") from None
    except ProcessExitedException as error:
        listener.join()
        if error.exit_code == USER_ERROR and refused:
            raise UserError(refused[0]) from None
        if error.exit_code == LEFT:
            raise Leaving from None
        raise RuntimeError(f"process {error.error_index} of {count} ended with {error.exit_code}") from None
    finally:
        for process in processes.processes:
            process.kill()
            process.join()
        listener.join()
        meeting.unlink(missing_ok=True)


def _listen(readers: Sequence[Connection], reporter: Reporter, refused: list[str]) -> None:
    """Pass on what the processes send, until all have ended."""
    waiting = list(readers)
    while waiting:
        for pipe in cast(list[Connection], connection.wait(waiting)):
            try:
                name, *rest = pipe.recv()
            except (EOFError, OSError):  # it ended, or was killed while it wrote
                waiting.remove(pipe)
            else:
                refused.append(*rest) if name == "refused" else getattr(reporter, name)(*rest)


def _process(
    rank: int, function: Work, meeting: Path, writers: Sequence[Connection], cfg: Any, out: Path, inputs: Any
) -> None:
    """One of the processes, with the environment that ``accelerate launch`` would give it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if can_leave():  # a scheduler signals every process of a trial; the first one decides for all
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(writers), "LOCAL_WORLD_SIZE": len(writers)}
    os.environ.update(LOOPBACK | {name: str(value) for name, value in ranks.items()} | {MEETING: str(meeting)})
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no output of the command
    for other in {*writers} - {writers[rank]}:
        other.close()
    settle(cfg.runtime)
    if device_of(cfg.runtime.device).type == "cuda":
        torch.cuda.set_device(rank)
    try:
        function(cfg, out, PipeReporter(writers[rank]) if rank == 0 else Reporter(), inputs)
    except UserError as error:
        writers[rank].send(("refused", str(error)))
        sys.exit(USER_ERROR)
    except Leaving:
        sys.exit(LEFT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(INTERRUPTED)
