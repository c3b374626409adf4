"""A case, and the process that calls its command: it judges what the command did, and is replaced where a case breaks
it or takes too long."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from typer.testing import CliRunner

import ablate
from pipeline.config import loading
from pipeline.errors import USER_ERROR

OUT = "out"
"""Output root of a case, in the case's own folder."""
MOST_LINES = 5
"""Lines on standard error, at most."""
CPU_SECONDS, WALL_SECONDS = 6.0, 40.0
"""A case that takes more processor time, or more time in all, hangs. A busy machine lengthens the second alone."""
MEMORY = 4 * 2**30
"""Bytes that the process may have beyond its size at the start."""
BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reorder what a terminal shows after them."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PATHS = {"os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.symlink": (1,),
         "os.link": (1,), "os.truncate": (0,), "os.chmod": (0,), "sqlite3.connect": (0,)}  # fmt: skip
"""Events of the interpreter that change files, and which of their arguments are paths."""
LINKS = {"dangling": "nowhere", "endless": "/dev/zero", "random": "/dev/urandom", "device": "/dev/null",
         "outside": "/etc/passwd"}  # fmt: skip
ODD: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "sparse": lambda path: (path.touch(), os.truncate(path, 2**40)),
    "long": lambda path: path.write_bytes(b"a" * 3_000_000),
    "locked": lambda path: path.touch(mode=0),  # root reads it
    **{name: partial(lambda target, path: path.symlink_to(target), target) for name, target in LINKS.items()},
}
"""Files that are none, or that never end."""


@dataclass(frozen=True)
class Case:
    """A command line, the files of the folder in which it is called, and the names that it may write there."""

    arguments: tuple[str, ...]
    files: dict[str, bytes | str] = field(default_factory=dict)
    """By path: the content, or a name of `ODD`."""
    writes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        files = {name[:80]: content[:2000] for name, content in self.files.items()}
        return f"ablate {' '.join(ascii(word)[:2000] for word in self.arguments)} with {files}"


class Worker:
    """One process at a time."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self.cpu_seconds = cpu_seconds
        self._process: Any = None

    def fault(self, case: Case) -> tuple[int, str]:
        """Exit code of a case, and which promise was broken; empty where none was."""
        if self._process is None:
            forking = multiprocessing.get_context("fork")  # all modules are imported already
            self._pipe, theirs = forking.Pipe()
            self._folder = tempfile.mkdtemp(prefix="ablate-fuzz-")
            self._process = forking.Process(target=_serve, args=(theirs, Path(self._folder)), daemon=True)
            self._process.start()
            theirs.close()
        began, spent = time.monotonic(), self._cpu()
        with suppress(EOFError, BrokenPipeError):
            self._pipe.send(case)
            while not self._pipe.poll(0.2):
                if time.monotonic() - began > WALL_SECONDS or self._cpu() - spent > self.cpu_seconds:
                    self.end()
                    return -1, "hang"
            return self._pipe.recv()  # type: ignore[no-any-return]
        self.end()
        return -1, "crash"

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._process = None

    def _cpu(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()  # there until it is joined, even if it has died
        return float(times.user + times.system)


def _serve(connection: Connection, root: Path) -> None:
    virtual = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
    shipped, number, strange = loading.PROFILES, 0, list[str]()
    permitted: list[Path] = []
    sys.addaudithook(partial(_hear, permitted, strange))
    while True:
        case, number = connection.recv(), number + 1
        folder = root / str(number)
        folder.mkdir()
        try:
            for name, content in case.files.items():
                path = folder / name
                with suppress(OSError, ValueError):  # no file can have this name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    ODD[content](path) if isinstance(content, str) else path.write_bytes(content)
            loading.PROFILES = folder / "profiles" if (folder / "profiles").exists() else shipped
            before = {path.name for path in folder.iterdir()}
            os.chdir(folder)
            strange.clear()
            permitted[:] = [folder / OUT, *(folder / name for name in case.writes), Path(os.devnull)]
            done = CliRunner().invoke(ablate.app, list(case.arguments))
            permitted.clear()
            new = {path.name for path in folder.iterdir()} - before - {OUT, *case.writes}
            answer = done.exit_code, _judged(done, [*strange, *new])
        except Exception as error:  # of the case or of the judge
            permitted.clear()
            answer = -1, f"mistake: {''.join(traceback.format_exception(error))[-800:]}"
        os.chdir(root)
        shutil.rmtree(folder, ignore_errors=True)
        connection.send(answer)


def _judged(done: Any, written: list[str]) -> str:
    """Which promise a command broke; empty where it broke none."""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"traceback: {type(done.exception).__name__}: {done.exception}"
    if done.exit_code not in (0, USER_ERROR):
        log = re.search(r"details: (\S.*)", done.stderr)
        return (
            f"traceback: {Path(log[1].strip()).read_text('utf-8', 'replace')[-1500:]}"
            if log
            else f"code: {done.stderr}"
        )
    if raw := sorted({one for one in done.stderr + done.stdout if _is_raw(one)}):
        return f"control character: {raw} in {(done.stderr + done.stdout)[:300]!r}"
    if done.exit_code and not done.stderr.strip():
        return "silent"
    if done.exit_code and (lines := done.stderr.rstrip("\n").count("\n") + 1) > MOST_LINES:
        return f"lines: {lines}: {done.stderr[:300]}"
    return f"outside: {', '.join(dict.fromkeys(written))}" if written else ""


def _is_raw(character: str) -> bool:
    """Whether a terminal would obey the character instead of showing it."""
    return character not in "\n\t" and (unicodedata.category(character) in ("Cc", "Cs") or character in BIDI)


def _hear(permitted: list[Path], strange: list[str], event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: note the paths that this process writes to and that are not permitted while a case runs."""
    if not permitted or (event != "open" and event not in PATHS):
        return
    if event == "open":
        path, mode, flags = arguments
        paths = [path] if flags & WRITING or (isinstance(mode, str) and set(mode) & set("wax+")) else []
    elif (event == "os.mkdir" and Path(os.fsdecode(arguments[0])).is_dir()) or (
        event in ("os.remove", "os.rmdir") and arguments[1] not in (-1, None)
    ):
        return  # it is there already, or its path is relative to a folder that is open
    else:
        paths = [arguments[place] for place in PATHS[event]]
    for one in paths:
        if isinstance(one, str | bytes | os.PathLike):
            whole = os.path.normpath(Path(os.fsdecode(one).removeprefix("file:")).absolute())
            if not any(_within(whole, place) for place in permitted):
                strange.append(whole)


def _within(path: str, place: Path) -> bool:
    """Whether a path is at or below a place, is a file beside it that is to replace it, or belongs to a library."""
    own = path.startswith(f"{tempfile.gettempdir()}/{tempfile.gettempprefix()}") or "/__pycache__/" in path
    return own or path == str(place) or path.startswith((f"{place}/", f"{place.parent}/.{place.name}."))
