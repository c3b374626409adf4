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

RAYS_PATIENCE = ("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
"""After so many seconds (60 by default) Ray ends any process that its head does not answer."""
PATIENCE_SECONDS = 60.0
"""As long as the nodes wait by default before they give up, with the trials on them."""
LOOK_SECONDS = 5.0
ANSWER_SECONDS = 3.0


class Head:
    """Of a cluster; it is taken for gone when its port takes no connection for a minute."""

    def __init__(
        self,
        address: str,
        patience: float = PATIENCE_SECONDS,
        look: float = LOOK_SECONDS,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """`address` is ``host:port``; `end` ends a process that is blocked."""
        self._address, self._patience, self._look, self._end = address, patience, look, end
        self._looked = self._heard = time.monotonic()

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
            if self._is_gone():
                print(f"ablate: {self._words()}", file=sys.stderr, flush=True)
                self._end(FAULT)
                return

    def _is_gone(self) -> bool:
        if _answers(self._address):
            self._heard = time.monotonic()
        self._looked = time.monotonic()
        return self._looked - self._heard > self._patience

    def _words(self) -> str:
        return (
            f"the head of the Ray cluster, {self._address}, has not answered for {self._patience:.0f} s. Finished"
            " trials, stages and checkpoints are kept; when a cluster is there again, the same command continues"
        )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except OSError:
        return False
