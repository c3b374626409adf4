"""What is asked of every case: it is accepted or refused in few words, and nothing else happens."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import ablate
from pipeline.errors import USER_ERROR

OUT = "out"
"""Output root of a case, in the case's own folder."""
MOST_LINES = 5
"""Lines on standard error, at most."""
BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reorder what a terminal shows after them."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATHS = {"os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.symlink": (1,),
          "os.link": (1,), "os.truncate": (0,), "os.chmod": (0,), "sqlite3.connect": (0,)}  # fmt: skip
"""Events of the interpreter that change files, and which of their arguments are paths."""


@dataclass(frozen=True)
class Case:
    """A command line; its files lie in the folder in which it is called."""

    arguments: tuple[str, ...]
    writes: tuple[str, ...] = ()
    """Names in that folder that the command may write beside its output root."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    fault: str
    """Which promise was broken, in a word; empty where none was."""
    code: int
    detail: str


class Writes:
    """Paths outside the permitted ones that this process writes to while a case runs."""

    def __init__(self) -> None:
        self._permitted: tuple[str, ...] | None = None
        self._strange: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def beside(self, *permitted: str) -> Iterator[list[str]]:
        """Listen; paths below the permitted ones are not reported."""
        self._strange.clear()
        self._permitted = (*permitted, os.devnull)
        try:
            yield self._strange
        finally:
            self._permitted = None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._permitted is None:
            return
        if event == "open":
            path, mode, flags = arguments
            writing = bool(flags & _WRITING) or (isinstance(mode, str) and bool(set(mode) & set("wax+")))
            paths = [path] if writing else []
        else:
            if event == "os.mkdir" and Path(os.fsdecode(arguments[0])).is_dir():
                return  # it is there already
            paths = [arguments[place] for place in _PATHS.get(event, ())]
            if event in ("os.remove", "os.rmdir") and arguments[1] not in (-1, None):
                return  # relative to a folder that is open already
        for one in paths:
            if isinstance(one, str | bytes | os.PathLike):
                self._note(os.fsdecode(one))

    def _note(self, path: str) -> None:
        whole = str(Path(path.removeprefix("file:")).absolute())
        resolved = os.path.normpath(whole)
        if not any(_within(resolved, Path(one)) for one in self._permitted or ()):
            self._strange.append(resolved)


def _within(path: str, place: Path) -> bool:
    """Whether a path is at or below a place, or is a file beside it that is to take its place."""
    if path.startswith(f"{tempfile.gettempdir()}/{tempfile.gettempprefix()}"):
        return True  # a library's own
    if "/__pycache__/" in path:
        return True  # the interpreter's own
    return path == str(place) or path.startswith((f"{place}/", f"{place.parent}/.{place.name}."))


def examine(case: Case, folder: Path, writes: Writes) -> Outcome:
    """Call the command in `folder`, which holds the case's files, and judge what it did."""
    before = {path.name for path in folder.iterdir()}
    os.chdir(folder)
    expected = {OUT, *case.writes}
    permitted = [str(folder / name) for name in expected]
    with writes.beside(*permitted) as strange:
        done = CliRunner().invoke(ablate.app, list(case.arguments))
    told = done.stderr
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return Outcome("traceback", done.exit_code, f"{type(done.exception).__name__}: {done.exception}")
    if done.exit_code not in (0, USER_ERROR):
        traced = _trace(told)
        return Outcome("traceback" if traced else "code", done.exit_code, traced or told)
    if raw := sorted({character for character in told + done.stdout if is_raw(character)}):
        return Outcome("control character", done.exit_code, f"{raw} in {(told + done.stdout)[:300]!r}")
    if done.exit_code and (lines := told.rstrip("\n").count("\n") + 1) > MOST_LINES:
        return Outcome("lines", done.exit_code, f"{lines} lines: {told[:300]}")
    if done.exit_code and not told.strip():
        return Outcome("silent", done.exit_code, "refused without a word")
    new = sorted({path.name for path in folder.iterdir()} - before - expected)
    if strange or new:
        return Outcome("outside", done.exit_code, ", ".join([*dict.fromkeys(strange), *new]))
    return Outcome("", done.exit_code, told)


def is_raw(character: str) -> bool:
    """Whether a terminal would obey the character instead of showing it."""
    return character not in "\n\t" and (unicodedata.category(character) in ("Cc", "Cs") or character in BIDI)


def _trace(told: str) -> str:
    """Exception and innermost places of the traceback that standard error names; empty where it names none."""
    found = re.search(r"details: (\S.*)", told)
    if found is None:
        return ""
    text = Path(found[1].strip()).read_text(encoding="utf-8", errors="replace")
    places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    short = [f"{Path(file).name}:{line} {name}" for file, line, name in places]
    named = [line for line in text.splitlines() if line[:1].strip() and not line.startswith("Traceback")]
    return f"{named[-1][:200]} at {' < '.join(reversed(short[-3:]))}"
