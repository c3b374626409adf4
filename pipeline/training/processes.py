"""One trial in several processes: each samples and measures its share of a rollout and back-propagates its share of a
mini-batch.

The shares are put together before anything is averaged: every process then holds the same rollout, the same gradient
and the same metrics, and takes the same step. So nothing is normalised twice, and the number of processes changes
results only by the order in which floats are added. They meet in a file, since a port would listen on every address.
The first process reports for all of them. They end together, and with their parent, however it ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, is_dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

from pipeline.errors import INTERRUPTED, UserError
from pipeline.models.loading import device_of
from pipeline.models.out_of_memory import MemoryFull
from pipeline.models.process import settle
from pipeline.run.progress import Reporter, can_leave

X = TypeVar("X")
MEETING = "ABLATE_MEETING"
"""Environment variable with the file in which the processes find each other."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a trial, seen from one of them; it alone where none are launched."""

    device: torch.device
    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, device: torch.device) -> Ranks:
        """Join the processes that `launch` has started for this trial, if there are any."""
        if (meeting := os.environ.get(MEETING)) is None:
            return cls(device)
        index, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = cast(Any, distributed).FileStore(meeting, count)
        distributed.init_process_group(backend, store=store, rank=index, world_size=count)
        return cls(device, index, count)

    @property
    def main(self) -> bool:
        """Return whether this is the process that writes."""
        return self.index == 0

    def share(self, rows: Sized) -> slice:
        """This process's part of `rows`, the parts in the order of the processes. Their number divides by that of the
        processes."""
        size = len(rows) // self.count
        return slice(self.index * size, (self.index + 1) * size)

    def part(self, rows: Tensor) -> Tensor:
        """This process's part of a mini-batch's rows, every n-th; may be empty."""
        return rows[self.index :: self.count]

    def join(self, mine: Tensor) -> Tensor:
        """The shares of all processes along the first dimension, in order; all other dimensions are equal
        everywhere."""
        if self.count == 1:
            return mine
        shares = [torch.empty_like(mine) for _ in range(self.count)]
        distributed.all_gather(shares, mine.contiguous())
        return torch.cat(shares)

    def gathered(self, mine: X) -> X:
        """The shares of all processes as one, in their order: tensors along the first dimension, all others equal
        everywhere; lists of what JSON holds; dataclasses and mappings of these."""

        def tensor(only: Sequence[Tensor]) -> Tensor:
            return self.join(only[0].to(self.device)).to(only[0].device)

        def rows(only: Sequence[list[Any]]) -> list[Any]:
            return [one for part in self._all(only[0]) for one in part]

        return mine if self.count == 1 else merged([mine], tensor, rows)

    def _all(self, mine: X) -> list[X]:
        """The values of all processes, in order; sent as JSON, since the helpers of `torch.distributed` for objects
        unpickle what comes over a socket."""
        text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8).to(self.device)
        sizes = self.join(torch.tensor([len(text)], device=self.device)).tolist()
        texts = self.join(pad(text, (0, max(sizes) - len(text)))[None]).cpu()
        return [json.loads(row[:size].numpy().tobytes()) for row, size in zip(texts, sizes, strict=True)]

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in place."""
        if self.count > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    def all_fit(self, work: Callable[[], X]) -> X:
        """The result of `work`, which exchanges nothing with other processes. Raises `MemoryFull` in every process when
        one of them has no room for it."""
        if self.count == 1:
            return work()
        result, why = None, None
        try:
            result = work()
        except MemoryFull as error:
            why = str(error)
        full = torch.tensor(float(why is not None), device=self.device)
        self.add([full])
        if float(full):
            raise MemoryFull(why or f"out of memory in {int(full)} of {self.count} processes")
        return cast(X, result)

    def agree(self, value: X) -> X:
        """The main process's value, something that JSON holds; clocks differ, and all must take the same turn."""
        return value if self.count == 1 else self._all(value)[0]

    def wait(self) -> None:
        """Wait until every process has come here."""
        if self.count > 1:
            distributed.barrier()

    def end(self) -> None:
        """Leave the group together; a process that left before the others could end them with an error."""
        if self.count > 1:
            distributed.destroy_process_group()


def concatenated(some: Sequence[X]) -> X:
    """Join dataclasses of tensors (n, ...) and lists of some rows into one of all rows."""
    return some[0] if len(some) == 1 else merged(some, torch.cat, lambda lists: [one for part in lists for one in part])


def merged(some: Sequence[Any], tensors: Callable[[Any], Tensor], lists: Callable[[Any], list[Any]]) -> Any:
    """Equally made values as one: their tensors by `tensors`, their lists by `lists`, dataclasses and mappings entry by
    entry."""
    first = some[0]
    if isinstance(first, Tensor):
        return tensors(some)
    if isinstance(first, list):
        return lists(some)
    if isinstance(first, Mapping):
        return {name: merged([one[name] for one in some], tensors, lists) for name in first}
    if is_dataclass(first):
        entries = {name: merged([vars(one)[name] for one in some], tensors, lists) for name in vars(first)}
        return cast(Any, type(first))(**entries)
    return first


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
