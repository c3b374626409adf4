"""Looks at a study while it runs: draws its page and prints its answer whenever one more seed is complete.

A look is a process of its own, so that it neither delays the study nor can end it; there is one at a time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence


class Interim:
    """Starts looks and passes on what they print."""

    def __init__(self, module: str | None, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        """`module` is run by this Python with these arguments, and prints a few lines; without one there are no
        looks."""
        self._module, self._arguments, self._say = module, arguments, say
        self._process: subprocess.Popen[bytes] | None = None
        self._when = ""
        self._wanted: str | None = None

    def look(self, when: str) -> None:
        """Look as soon as no other look is under way; `when` heads what is printed."""
        if self._module is not None:
            self._wanted = when
            self.poll()

    def poll(self) -> None:
        """Pass on what a finished look printed, and start the next one."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._pass_on(self._process)
            self._process = None
        if self._wanted is not None:
            self._when, self._wanted = self._wanted, None
            self._start()

    def close(self) -> None:
        """End a look that is still under way: the study's own end comes next."""
        self._wanted = None
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", str(self._module), *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # a few lines, which a pipe holds until they are read
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the command, which ends the look
        )

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        text = process.communicate()[0].decode("utf-8", "replace").strip()
        if process.returncode == 0:  # what goes wrong shows itself again, and is reported, when the study ends
            self._say(f"{self._when}: {text}")
