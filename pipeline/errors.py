"""Errors shown as one line, never as a traceback: a user's mistake, or a fault of data, disk or program."""

from __future__ import annotations

from pathlib import Path

USER_ERROR = 2
FAULT = 4
"""Exit code, different from every verdict of `falsify` (0, 1, 3)."""
INTERRUPTED = 130
BROKEN_PIPE = 141


class UserError(Exception):
    """Something the user can put right; the message states what, where and how. Exit code 2."""


class Fault(Exception):
    """Data, disk or program failed, and the request was sound; the message names the file. Exit code 4."""


class Damaged(Fault):
    """A file that is not what was written."""

    def __init__(self, path: Path, why: str, remedy: str = "") -> None:
        super().__init__(path, why, remedy)
        self.path, self.why, self.remedy = path, why, remedy

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.why}" + (f"; {self.remedy}" if self.remedy else "")


class Gone(Damaged):
    """A file or folder that is recorded and no longer there."""

    def __init__(self, path: Path, why: str = "no such file", remedy: str = "") -> None:
        super().__init__(path, why, remedy)

    def __str__(self) -> str:
        why = "" if self.why == "no such file" else f": {self.why}"
        return f"{self.path} is missing{why}" + (f"; {self.remedy}" if self.remedy else "")
