"""Carries out what is to be told to MLflow, one thing after another, so that nobody waits for a slow server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

Action = Callable[[], object]


class Post:
    """A thread that carries out actions in the order in which they were given.

    What an action raises is dropped: `StudySinks.sync` repeats whatever did not succeed.
    """

    def __init__(self) -> None:
        self._actions = queue.Queue[Action | None]()
        self._thread: threading.Thread | None = None

    def put(self, action: Action) -> None:
        """Have an action carried out after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mlflow post", daemon=True)
            self._thread.start()
        self._actions.put(action)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all is carried out, at most so long. False when it is not."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._actions.put(done.set)
        return done.wait(seconds)

    def drop(self) -> None:
        """Forget what has not begun."""
        with suppress(queue.Empty):
            while True:
                self._actions.get_nowait()

    def end(self) -> None:
        """Let the thread end once all is carried out."""
        if self._thread is not None:
            self._actions.put(None)
            self._thread = None

    def _work(self) -> None:
        while (action := self._actions.get()) is not None:
            with suppress(Exception):
                action()
