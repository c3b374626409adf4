"""Checkpoints of a whole trial: atomic, two kept, a damaged one falls back to the one before; and going on from
them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pipeline.config.trial import RuntimeConfig
from pipeline.resources.ledger import KEPT as FOLDER
from pipeline.run.metrics import MetricsLog
from pipeline.run.progress import RESUMED, Reporter
from pipeline.training.processes import Ranks
from pipeline.training.state import Progress, TrainingState

KEPT = 2
DIGITS = 16


def save(folder: Path, update: int, state: dict[str, Any]) -> int:
    """Write ``update_<n>.<sha256>.pt`` in one step, then delete all but the newest two. Returns the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".writing"
    try:
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        digest = _digest(beside)
    except BaseException:
        beside.unlink(missing_ok=True)  # on a full disk, half a checkpoint only takes space
        raise
    os.replace(beside, folder / f"update_{update:08d}.{digest}.pt")
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return size


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(folder.glob("update_*.pt"))


def load_latest(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that is what was written (tensors and plain values only), or None.

    A damaged one is set aside. Its name carries the digest, since the file format detects a flipped bit in
    a weight no more than we would.
    """
    for path in reversed(checkpoints(folder)):
        if path.name.split(".")[1] == _digest(path):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        warn(f"checkpoint {path.name} is damaged; falling back to the one before")
        os.replace(path, path.with_suffix(".damaged"))
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


class Checkpoints:
    """Checkpoints of a running trial, and its metrics file, which they refer to."""

    def __init__(
        self, out: Path, state: TrainingState, ranks: Ranks, watch: Reporter, begin: Callable[[], None] | None
    ) -> None:
        """`begin` puts the metrics and the checkpoint with which a later round begins into place."""
        self._metrics, self._folder, self._begin = out / "metrics.jsonl", out / FOLDER, begin
        self._state, self._ranks, self._watch = state, ranks, watch
        self.log: MetricsLog | None = None
        """None in a process that does not write."""
        self.saved = Progress()
        """Where the newest one was written."""

    def due(self, knobs: RuntimeConfig) -> bool:
        """Return whether one is due: enough updates after the last one, and not too large a share of the time."""
        ledger, share = self._state.ledger, knobs.checkpoint_share
        rare = share is None or ledger.checkpoint_s <= share * (ledger.wall_s - self.saved.wall_s)
        return rare and self._state.update - self.saved.update >= knobs.checkpoint_updates

    def save(self) -> None:
        """Save the trial as it stood before the update at hand. Its rollout has been healthy, so the weights are good
        ones."""
        state = self._state
        if self._ranks.main:
            with state.ledger.timed("checkpoint"):
                if self.log:
                    self.log.flush()
                state.ledger.checkpoint_bytes += self.leave(self._folder)
                state.ledger.checkpoints += 1
        self.saved = state.progress

    def leave(self, folder: Path) -> int:
        """Write the trial as it stands to a folder; returns the bytes written."""
        assert self.log is not None
        return save(folder, self._state.update, self._state.content(self.log.offset))

    def newest(self) -> dict[str, Any] | None:
        """The content of the newest one that is sound."""
        return load_latest(self._folder, self._watch.warn)

    def resume(self) -> None:
        """Go on from the newest one that is sound. The main process looks first, and repairs; the others find what it
        left."""
        if self._ranks.main:
            self._open()
        self._ranks.wait()
        if not self._ranks.main:
            content = self.newest()
            assert content is not None
            self._load(content)

    def _open(self) -> None:
        content, state = self.newest(), self._state
        resumed = content is not None
        if self._begin and not resumed:
            self._begin()
            content = self.newest()
        if content is None:
            self.log = MetricsLog(self._metrics)
            self.save()
            return
        try:
            self.log = MetricsLog(self._metrics, content["offset"])
        except (ValueError, FileNotFoundError) as error:
            self._watch.warn(f"the metrics do not fit the checkpoint ({error}); starting over")
            shutil.rmtree(self._folder)
            self._open()
            return
        self._load(content)
        if resumed:
            self._watch.progress("train", state.planned, state.cfg.train.steps, RESUMED)

    def _load(self, content: Mapping[str, Any]) -> None:
        self._state.load(content)
        self.saved = self._state.progress
