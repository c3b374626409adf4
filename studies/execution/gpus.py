"""GPUs of this machine, each held by one hand at a time, so that two commands never share a card by accident."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

from filelock import FileLock

from pipeline.resources.machine import visible_gpus
from pipeline.run.locks import try_lock


class Gpus:
    """The cards that this hand holds, and how many processes compute on each."""

    def __init__(self) -> None:
        self._locks: list[FileLock] = []
        self._used: Counter[str] = Counter()

    def hold(self, count: int, needed: int) -> bool:
        """Hold up to `count` free cards in all; False where this hand then has fewer than `needed`."""
        for name in visible_gpus():
            if len(self._used) < count and name not in self._used and (lock := try_lock(_file(name))) is not None:
                self._locks.append(lock)
                self._used[name] = 0
        return len(self._used) >= needed

    def take(self, count: int) -> list[str]:
        """The `count` least used of these cards."""
        taken = sorted(self._used, key=self._used.__getitem__)[:count]
        self._used.update(taken)
        return taken

    def give_back(self, names: list[str]) -> None:
        """End the use of some cards."""
        self._used.subtract(names)


def _file(name: str) -> Path:
    return Path.home() / ".cache" / "ablate" / f"{socket.gethostname()}-gpu-{name.replace('/', '_')}"
