"""Cases in a process of their own, which is replaced when a case takes too long, or too much memory, or breaks it."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from fuzz.making import Maker
from fuzz.oracle import Case, Outcome, Writes, examine

CPU_SECONDS, WALL_SECONDS = 6.0, 40.0
"""A case that takes more processor time, or more time in all, hangs. A busy machine lengthens the second alone."""
MEMORY = 4 * 2**30
"""Bytes that a worker may have beyond what it begins with."""
Label = tuple[str, int]
"""Kind and number of a case."""


def outcomes(
    makers: Mapping[str, Maker], labels: Iterable[Label], seed: int, cpu_seconds: float = CPU_SECONDS
) -> Iterator[tuple[Label, Case | None, Outcome]]:
    """Each case with what came of it, in order. The case is None where its worker did not live to tell it."""
    worker: Worker | None = None
    for label in labels:
        worker = worker or Worker(makers, seed, cpu_seconds)
        answer = worker.ask(label)
        if answer is None:
            why = worker.end()
            worker = None
            yield label, None, Outcome(why, -1, "")
        else:
            yield label, *answer
    if worker is not None:
        worker.end()


def made(maker: Maker, kind: str, number: int, seed: int, folder: Path) -> Case:
    """The case of this number, with its files in the folder; the same for the same seed."""
    return maker(random.Random(f"{seed}/{kind}/{number}"), folder)


class Worker:
    """One process, and what it is asked."""

    def __init__(self, makers: Mapping[str, Maker], seed: int, cpu_seconds: float) -> None:
        self._cpu_seconds = cpu_seconds
        forking = multiprocessing.get_context("fork")  # all modules are imported already
        self._ours, theirs = forking.Pipe()
        self._folder = Path(tempfile.mkdtemp(prefix="ablate-fuzz-"))
        self._process = forking.Process(target=_serve, args=(theirs, makers, seed, self._folder), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, label: Label) -> tuple[Case | None, Outcome] | None:
        """The outcome of a case, or None where none came in time."""
        began, spent = time.monotonic(), self._cpu()
        self._ours.send(label)
        while not self._ours.poll(0.2):
            late = time.monotonic() - began > WALL_SECONDS or self._cpu() - spent > self._cpu_seconds
            if late or not self._process.is_alive():
                return None
        try:
            return self._ours.recv()  # type: ignore[no-any-return]
        except EOFError:  # it has ended, or is about to
            self._process.join(1.0)
            return None

    def end(self) -> str:
        """End the process; how it is to be called that it gave no answer."""
        died = not self._process.is_alive()
        if self._process.pid is not None and not died:
            self._process.kill()
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        return "crash" if died else "hang"

    def _cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(connection: Connection, makers: Mapping[str, Maker], seed: int, root: Path) -> None:
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
    writes = Writes()
    while True:
        kind, number = connection.recv()
        folder = root / f"{kind}-{number}"
        folder.mkdir()
        case, outcome = None, None
        try:
            case = made(makers[kind], kind, number, seed, folder)
            outcome = examine(case, folder, writes)
        except Exception as error:  # of the maker or of the judge
            outcome = Outcome("mistake", -1, "".join(traceback.format_exception(error))[-400:])
        os.chdir(root)
        shutil.rmtree(folder, ignore_errors=True)
        connection.send((case, outcome))
