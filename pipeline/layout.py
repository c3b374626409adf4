"""Where things lie under the output root, and the record that a finished trial leaves.

<root>/store/<stage>/<key>/                     artifacts, shared by all studies
<root>/studies/<study>/<profile>/study.json     the study as it was last started
                                 optuna.db      the plan
                                 search.json    of a search: its trials, its front, what is confirmed
                                 trials/<arm>__seed<seed>.json   one TrialRecord each
                                 mlflow/<arm>__seed<seed>.json   what MLflow has been told
                                 report/        tables, figures, index.html
<root>/mlflow.db, <root>/mlartifacts/           the MLflow store
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import UserError

Status = Literal["complete", "budget", "diverged", "pruned", "failed"]
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,99}")


class StageRef(BaseModel):
    """Where the artifact of one stage lies."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str
    path: str
    """Relative to the output root."""


class TrialRecord(BaseModel):
    """What reports and verdicts need to know of a trial; written once, when it has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    profile: str
    arm: str
    seed: int
    config: dict[str, Any]
    """The resolved TrialConfig, nested."""
    config_digest: str
    status: Status
    reason: str | None = None
    """Why the trial did not complete, in words."""
    steps: int
    """Gradient steps taken."""
    stages: dict[str, StageRef]
    summary: dict[str, float]
    """`eval/*` metrics; win rate of this seed's prompts etc. Empty when evaluation was impossible."""
    cost: dict[str, float]
    """wall_s, generated_tokens, peak_memory_gib, tflop, t4_s."""
    environment: dict[str, str]
    """Versions of Python and libraries, platform, git commit."""
    finished: str
    """UTC, ISO 8601."""


@dataclass(frozen=True)
class Layout:
    """Paths under one output root. Names from users are checked before they become paths."""

    root: Path

    @classmethod
    def at(cls, out: str | Path | None = None) -> Layout:
        """``out``, else ``$ABLATE_HOME``, else ``./outputs``; always absolute."""
        return cls(Path(out or os.environ.get("ABLATE_HOME") or "outputs").expanduser().absolute())

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def mlflow_artifacts(self) -> Path:
        return self.root / "mlartifacts"

    def study(self, name: str, profile: str) -> StudyFolder:
        return StudyFolder(self.root, self.root / "studies" / safe(name) / safe(profile))


@dataclass(frozen=True)
class StudyFolder:
    """The files of one study on one profile."""

    root: Path
    path: Path

    @property
    def study_file(self) -> Path:
        return self.path / "study.json"

    @property
    def search_file(self) -> Path:
        return self.path / "search.json"

    @property
    def optuna_uri(self) -> str:
        return f"sqlite:///{self.path / 'optuna.db'}"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def trial_file(self, arm: str, seed: int) -> Path:
        return self.path / "trials" / f"{safe(arm)}__seed{seed}.json"

    def mlflow_file(self, arm: str, seed: int) -> Path:
        return self.path / "mlflow" / f"{safe(arm)}__seed{seed}.json"

    def records(self) -> list[TrialRecord]:
        """All records that can be read, ordered by arm and seed."""
        found = [record for path in (self.path / "trials").glob("*.json") if (record := _record(path))]
        return sorted(found, key=lambda record: (record.arm, record.seed))

    def record(self, arm: str, seed: int) -> TrialRecord | None:
        """The record of one cell, if it has ended."""
        return _record(self.trial_file(arm, seed))


def _record(path: Path) -> TrialRecord | None:
    """A record, or None where there is none, or none of this version: the study then writes it again from the store."""
    try:
        return TrialRecord.model_validate_json(path.read_text("utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def safe(name: str) -> str:
    """Refuse names that could leave their folder or confuse a shell."""
    if not SAFE_NAME.fullmatch(name):
        raise UserError(f"the name '{name}' cannot be used: only letters, digits and _ . + = -, first a letter or digit, at most 100")
    return name


def writable(root: Path) -> None:
    """Create the output root; where that is not allowed, say so in one line."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UserError(f"output folder {root} cannot be written: {error.strerror}; choose another with --out or ABLATE_HOME") from None


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON with sorted keys."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")
