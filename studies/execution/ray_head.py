"""Notices that the head of a Ray cluster is gone, before Ray ends the command for it with an exit code of its own.

Knows nothing of Ray but an address, and the variable by which it is told to leave the command alone for longer.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.errors import FAULT, Fault

RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""After so many seconds (60 by default) Ray ends any process that its head does not answer."""
OUR_SECONDS = "601"
"""What the command sets for itself; a user's own value is known by being another one."""
PATIENCE_SECONDS = 60.0
"""As long as the nodes wait by default before they give up, with the trials on them."""
MARGIN_SECONDS = 15.0
"""By so much the command is quicker than Ray, where the user has said how long Ray waits."""
LOOK_SECONDS = 5.0
ANSWER_SECONDS = 3.0


def patience() -> float:
    """Seconds for which a head may be silent. Before Ray is imported: has it leave the command alone for longer."""
    if os.environ.setdefault(RAYS_PATIENCE, OUR_SECONDS) == OUR_SECONDS:
        return PATIENCE_SECONDS
    try:
        return max(float(os.environ[RAYS_PATIENCE]) - MARGIN_SECONDS, 0.0)
    except ValueError:
        return PATIENCE_SECONDS


class Head:
    """Of a cluster; it is taken for gone when its port takes no connection for a while."""

    def __init__(
        self,
        address: str,
        patience: float = PATIENCE_SECONDS,
        look: float = LOOK_SECONDS,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """`address` is ``host:port``; `end` ends a process that is blocked."""
        self._address, self._patience, self._look, self._end = address, patience, look, end
        self._looked = time.monotonic()
        self._silent: float | None = None
        """Since when no look has found it."""

    def check(self) -> None:
        """Raises `Fault` when the head has been away for too long."""
        if time.monotonic() - self._looked > self._look and self._is_gone():
            raise Fault(self._words())

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Around calls for which Ray waits until the head answers: when it is gone, the process ends with a word."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), name="ray-head", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(self._look):
            if self._is_gone() and not over.is_set():
                _say(self._words())
                self._end(FAULT)
                return

    def _is_gone(self) -> bool:
        answers, now = _answers(self._address), time.monotonic()
        self._looked = now
        self._silent = None if answers else self._silent or now
        return self._silent is not None and now - self._silent > self._patience

    def _words(self) -> str:
        return (
            f"the head of the Ray cluster, {self._address}, has not answered for {self._patience:.0f} s. Finished"
            " trials, stages and checkpoints are kept; when a cluster is there again, the same command continues"
        )


def _say(words: str) -> None:
    """On the true standard error, below a live display that nobody will end."""
    out = sys.__stderr__ or sys.stderr
    show_cursor = "\x1b[?25h\n" if sys.__stdout__ is not None and sys.__stdout__.isatty() else ""
    print(f"{show_cursor}ablate: {words}", file=out, flush=True)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except OSError:
        return False
