"""Send to MLflow while trials run, from a thread of its own: neither trials nor the report wait for MLflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from studies.tracking.sync import Running, Synced

EVERY_S = 5.0
AGAIN_S = 60.0
"""Seconds until MLflow is tried again after it failed."""
PATIENCE_S = 10.0
"""Seconds that an interrupted study waits for MLflow."""


class Background:
    """A thread that calls ``send(running=, warn=)`` every few seconds from `begin` on, and a last time at the end."""

    def __init__(
        self,
        send: Callable[..., Synced | None],
        running: Callable[[], Sequence[Running]],
        warn: Callable[[str], None],
    ) -> None:
        """`running` gives the trials that run now."""
        self._send, self._running, self._warn = send, running, warn
        self._last: dict[str, Any] = {}
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def begin(self) -> None:
        """Show the study while it runs."""
        self._thread.start()

    def end(self, status: str, **last: Any) -> None:
        """Send the rest, however long it takes; an interrupted study waits `PATIENCE_S`. Raises what `send` raises."""
        self._last = {"status": status, **last}
        self._ended.set()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive() and status == "interrupted":
            self._warn("MLflow did not hear of the interruption; the next call, or `ablate sync`, goes on there")
        elif self._thread.is_alive():
            self._warn("MLflow has not taken all yet; Ctrl-C ends the wait, and `ablate sync` sends the rest later")
            self._thread.join()
        if self._error:
            raise self._error

    def _work(self) -> None:
        pause, warn = 0.0, self._warn
        while not self._ended.wait(pause):
            pause = EVERY_S
            with suppress(Exception):  # of a damaged file, which the last call reports
                done = self._send(running=self._running(), warn=warn)
                failed = done is not None and not done.complete
                pause, warn = (AGAIN_S, lambda line: None) if failed else (EVERY_S, self._warn)
        try:
            while self._send(warn=self._warn, **self._last) is None:  # another process sends just now
                time.sleep(1)
        except Exception as error:
            self._error = error
