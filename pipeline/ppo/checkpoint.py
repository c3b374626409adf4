"""Checkpoints of a whole trial: atomic, two kept, a damaged one falls back to the one before."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KEPT = 2


def save(folder: Path, update: int, state: dict[str, Any]) -> None:
    """Write ``update_<n>.pt`` in one step, then delete all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".writing"
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, folder / f"update_{update:08d}.pt")
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(folder.glob("update_*.pt"))


def load_latest(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that can be read (tensors and plain values only), or None."""
    for path in reversed(checkpoints(folder)):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            warn(f"checkpoint {path.name} cannot be read ({type(error).__name__}); falling back to the one before")
            path.unlink()
        else:
            return state
    return None
