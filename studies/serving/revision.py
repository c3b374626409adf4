"""Which weights gave an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Revision:
    """No two states of a policy have the same one."""

    key: str
    """Of the trial: that of its training in the store. Of a folder: the digest of its weights."""
    step: int | None
    """Gradient steps taken; None of a folder."""
    state: str
    """``training``, how the training ended (``complete``, ``budget`` ...), or ``exported``."""

    def __str__(self) -> str:
        return self.key if self.step is None else f"{self.key}@{self.step}"

    @property
    def body(self) -> dict[str, Any]:
        return {"trial": self.key, "step": self.step, "state": self.state}
