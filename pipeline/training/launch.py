"""Run a function of a trial in several processes. They meet in a file, since a port would listen on every address.

The first process reports for all of them. They end together, and with their parent, however it ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch

from pipeline.errors import INTERRUPTED, UserError
from pipeline.models.loading import device_of
from pipeline.models.process import settle
from pipeline.run.progress import Reporter, can_leave
from pipeline.training.processes import MEETING

Work = Callable[[Any, Path, Reporter, Any], None]
LINES = 8
"""Number of lines of a traceback in the message."""
LOOPBACK = {
    f"{library}_SOCKET_IFNAME": name
    for _, name in socket.if_nameindex()
    if name in ("lo", "lo0")
    for library in ("GLOO", "NCCL")
}
"""Environment of the processes: what they send to each other does not leave the machine."""


class Sender:
    """The reporter of the first process: sends each call to the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values: self._pipe.send((name, *values))


def launch(function: Work, cfg: Any, out: Path, reporter: Reporter, inputs: Any) -> None:
    """Run ``function(cfg, out, reporter, inputs)`` in `cfg.runtime.processes` processes until all have ended.

    Raises the first error of a process: a `UserError`, `Leaving` where the trial has left, else a `RuntimeError` with
    the end of the traceback.
    """
    count, meeting, spawn = cfg.runtime.processes, (out / ".meeting").absolute(), get_context("spawn")
    meeting.unlink(missing_ok=True)  # of processes that were killed: it would name them
    running, ranks = {}, range(count)
    for rank in ranks:
        reader, writer = spawn.Pipe(duplex=False)
        work = (rank, count, meeting, writer, function, cfg, out, inputs)
        running[reader] = spawn.Process(target=_process, args=work, daemon=True)
        running[reader].start()
        writer.close()
    waiting = dict(zip(running, ranks, strict=True))
    try:
        while waiting:
            for pipe in cast(list[Connection], connection.wait(waiting)):
                try:
                    name, *rest = pipe.recv()
                except (EOFError, OSError):  # the process ended, or was killed while it wrote
                    rank = waiting.pop(pipe)
                    running[pipe].join()
                    if code := running[pipe].exitcode:
                        raise RuntimeError(f"process {rank} of {count} ended with {code}") from None
                else:
                    if name == "failed":
                        raise rest[0]
                    getattr(reporter, name)(*rest)
    finally:
        for process in running.values():
            process.kill()
            process.join()
        meeting.unlink(missing_ok=True)


def _process(
    rank: int, count: int, meeting: Path, pipe: Connection, function: Work, cfg: Any, out: Path, inputs: Any
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if can_leave():  # a scheduler signals every process of a trial; the first one decides for all
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.update(LOOPBACK | {"RANK": str(rank), "WORLD_SIZE": str(count), MEETING: str(meeting)})
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no output of the command
    settle(cfg.runtime)
    if device_of(cfg.runtime.device).type == "cuda":
        torch.cuda.set_device(rank)
    try:
        function(cfg, out, cast(Reporter, Sender(pipe)) if rank == 0 else Reporter(), inputs)
    except (UserError, KeyboardInterrupt) as error:  # `Leaving` is one of these
        pipe.send(("failed", error))
    except BaseException:
        end = "\n".join(traceback.format_exc().strip().splitlines()[-LINES:])
        pipe.send(("failed", RuntimeError(f"process {rank} of {count} failed:\n{end}")))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(INTERRUPTED)
