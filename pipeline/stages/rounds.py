"""What the stages `reward` and `train` share where a trial has them once for each round."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipeline.run.store import MANIFEST, Artifact

SPENT = "log/spent.json"
"""What a stage has spent, for the ledger of the trial; no two runs spend the same seconds."""
DIGITS = 20


def number_of(last: Artifact | None) -> int:
    """Which round comes after an artifact of the last one; the first is 1."""
    return 1 if last is None else int(last.meta["round"]["number"]) + 1


def has_ended(last_train: Artifact | None) -> bool:
    """Whether a trial was ended in an earlier round: by a cap, a rule that stops it, or divergence."""
    return last_train is not None and last_train.meta["status"] != "complete"


def carried_on(last: Artifact, out: Path) -> dict[str, Any]:
    """Leave what the round before left, in a trial that has ended: later rounds neither collect nor train."""
    shutil.copytree(last.path, out, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
    meta = {name: value for name, value in last.meta.items() if name != "note"}
    return {**meta, "round": {**last.meta["round"], "number": number_of(last)}, "note": "the trial has ended before"}


def name_of(artifact: Artifact) -> str:
    """How metadata name an artifact: ``train-1/<digest>``. Its key would also change where only the code before it
    does."""
    return f"{artifact.stage}/{artifact.digest[:DIGITS]}"
