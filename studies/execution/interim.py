"""Looks at a study while it runs: draws its page and prints its answer whenever one more seed is complete.

A look is a process of its own, so that it neither delays the study nor can end it; there is one at a time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HEAD = "Interim, not final: "
"""Of what a look prints; how many seeds it saw is part of that, since more can be complete by then."""


class Interim:
    """Starts looks and passes on what they print."""

    def __init__(self, module: str | None, folder: Path, say: Callable[[str], None]) -> None:
        """`module` is run by this Python on `folder`, and prints a few lines; without one there are no looks."""
        self._command, self._say = [sys.executable, "-m", str(module), str(folder)], say
        self._wants = module is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False

    def look(self) -> None:
        """Look as soon as no other look is under way."""
        self._wanted = self._wants
        self.poll()

    def poll(self) -> None:
        """Pass on what a finished look printed, and start the next one."""
        if self._process is not None and self._process.poll() is not None:
            text = self._process.communicate()[0].decode("utf-8", "replace").strip()
            if self._process.returncode == 0:  # what goes wrong is reported when the study ends
                self._say(HEAD + text)
            self._process = None
        if self._wanted and self._process is None:
            self._wanted = False
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a few lines, which a pipe holds until they are read
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the command, which ends the look
            )

    def close(self) -> None:
        """End a look that is still under way: the study's own end comes next."""
        self._wanted = False
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None
