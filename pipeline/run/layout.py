"""Paths under the output root, and the record that a finished trial leaves.

<root>/store/<stage>/<key>/                     artifacts, shared by all studies
<root>/studies/<study>/<profile>/study.json     the study as it was last started
                                 optuna.db      a copy for Optuna's tools
                                 search.json    of a search: its trials, its front, what is confirmed
                                 registration.jsonl   claims as they were before the data, and every later change
                                 trials/<arm>__seed<seed>.json   one TrialRecord each
                                 status/<arm>__seed<seed>.json   how far each trial that has begun has come
                                 locks/, hands/ which trials are being run, and by which processes
                                 mlflow.json    what MLflow has
                                 report/        tables, figures, index.html
<root>/mlflow.db, <root>/mlartifacts/           the MLflow store
<root>/log/                                     tracebacks of faults that no command expected

Every JSON file of a study carries a digest of its own content. What is damaged is moved to `.damaged/` beside it, never
deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.config.trial import canonical_json
from pipeline.errors import Damaged, Fault, Gone, UserError
from pipeline.named_files import FILE, kind_of, place

Status = Literal["complete", "budget", "diverged", "pruned", "failed"]
SEAL = "content_sha256"
"""Key of a sealed JSON file: the digest of the rest of its content."""
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,99}")


class StageRef(BaseModel):
    """Place of the artifact of one stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str
    path: str
    """Path relative to the output root."""
    digest: str
    """Digest of the artifact's outputs, as its manifest states it."""
    finished: str | None = None
    """UTC, ISO 8601: when the stage first ended, as the artifact's manifest states it; None of imported results."""


class TrialRecord(BaseModel):
    """A trial's data for reports and verdicts; written once, when it has ended."""

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
    """Reason why the trial did not complete."""
    steps: int
    """Gradient steps taken."""
    stages: dict[str, StageRef]
    summary: dict[str, float]
    """`eval/*` metrics; win rate of this seed's prompts etc. Empty when evaluation was impossible."""
    ends: dict[str, float] = {}
    """Mean of the last tenth of each series, of a trial that was never evaluated here; else empty."""
    cost: dict[str, float]
    """wall_s, generated_tokens, peak_memory_gib, tflop, t4_s."""
    environment: dict[str, str]
    """Versions of Python and libraries, platform, git commit."""
    finished: str
    """UTC, ISO 8601."""


@dataclass
class Layout:
    """Paths under one output root. Names from users are checked before they become paths."""

    root: Path

    @classmethod
    def at(cls, out: str | Path | None = None) -> Layout:
        """``out``, else ``$ABLATE_HOME``, else ``./outputs``; always absolute."""
        return cls(place(out or os.environ.get("ABLATE_HOME") or "outputs"))

    def __post_init__(self) -> None:
        self.store = self.root / "store"
        self.mlflow_file, self.mlflow_artifacts = self.root / "mlflow.db", self.root / "mlartifacts"
        self.mlflow_uri = f"sqlite:///{self.mlflow_file}"

    def study(self, name: str, profile: str) -> StudyFolder:
        return StudyFolder(self.root, self.root / "studies" / safe(name) / safe(profile))


@dataclass
class StudyFolder:
    """The files of one study on one profile."""

    root: Path
    path: Path

    def __post_init__(self) -> None:
        self.study_file = self.path / "study.json"
        self.registration_file = self.path / "registration.jsonl"
        self.search_file = self.path / "search.json"
        self.optuna_file = self.path / "optuna.db"
        self.mlflow_state = self.path / "mlflow.json"
        self.report = self.path / "report"
        # The report's results on hypotheses and claims, for the terminal, MLflow and the page of a confirmation.
        self.claims_file = self.report / "claims.json"

    def trial_file(self, arm: str, seed: int) -> Path:
        return self.path / "trials" / f"{self.cell_name(arm, seed)}.json"

    def cell_name(self, arm: str, seed: int) -> str:
        return f"{safe(arm)}__seed{seed}"

    def lock_file(self, name: str) -> Path:
        return self.path / "locks" / name

    def status_file(self, name: str) -> Path:
        return self.path / "status" / f"{name}.json"

    def log_file(self, name: str) -> Path:
        return self.path / "log" / f"{name}.txt"

    @property
    def remedy(self) -> str:
        """Instruction for making a damaged file of this study anew."""
        name, profile = self.path.parent.name, self.path.name
        if profile == "imported":
            return f"import the logs of '{name}' again (ablate import --replace) to rebuild it"
        return f"run study '{name}' on profile {profile} again to rebuild it"

    def records(self) -> list[TrialRecord]:
        """All records, ordered by arm and seed. Raises `Damaged` for one that is not what was written."""
        records = [self.read(path) for path in self.trial_files()]
        return sorted(records, key=lambda record: (record.arm, record.seed))

    def record(self, arm: str, seed: int) -> TrialRecord | None:
        """The record of one cell, None if it has not ended. Raises `Damaged`."""
        path = self.trial_file(arm, seed)
        return self.read(path) if os.path.lexists(path) else None  # a link to nothing is damaged

    def trial_files(self) -> list[Path]:
        return sorted((self.path / "trials").glob("*.json"))

    def started(self) -> dict[str, Any]:
        """``study.json``, empty where the study was never run here. Raises `Damaged`, also where only the file has
        gone."""
        if not self.study_file.exists() and not self.trial_files():
            return {}
        with self.naming_remedy():
            return read_sealed(self.study_file)

    @contextmanager
    def naming_remedy(self) -> Iterator[None]:
        """Add the repair of this study to a `Damaged` that is raised inside."""
        try:
            yield
        except Damaged as error:
            error.remedy = error.remedy or self.remedy
            raise

    def write(self, record: TrialRecord) -> None:
        """Write the record of a trial in one step."""
        write_atomic(self.trial_file(record.arm, record.seed), sealed(record.model_dump(mode="json")))

    def read(self, path: Path) -> TrialRecord:
        """The record in one of `trial_files`. Raises `Damaged`."""
        with self.naming_remedy():
            try:
                record = TrialRecord.model_validate(read_sealed(path))
            except ValidationError as error:
                fault = error.errors()[0]
                raise Damaged(path, f"{'.'.join(map(str, fault['loc'])) or 'content'}: {fault['msg']}") from None
            if path.name != self.trial_file(record.arm, record.seed).name:
                raise Damaged(path, f"it is the record of arm {record.arm} seed {record.seed}")
            return record


def sealed(content: Mapping[str, Any]) -> str:
    """JSON of a mapping with the digest of its content; keys stay in their order."""
    plain = json.loads(json.dumps(content, allow_nan=False))  # as it will be read: tuples are lists, all keys are text
    return json.dumps({**plain, SEAL: _seal(plain)}, indent=2) + "\n"


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a file that `sealed` made, without its digest.

    Raises `Damaged` for one that is not what was written, `Gone` for one that is not there, and `Fault` for one that
    may not be read.
    """
    content = read_json(path)
    if content.pop(SEAL, None) != _seal(content):
        raise Damaged(path, "its content has changed since it was written (checksum differs)")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """A JSON mapping. Raises `Damaged`, `Gone`, or `Fault` for a file that may not be read."""
    if (kind := kind_of(path)) not in (FILE, None):  # opening a pipe would never end
        raise Damaged(path, f"it is {kind}")
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise Gone(path) from None
    except OSError as error:
        raise Fault(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # no UTF-8, or no JSON
        raise Damaged(path, "it is not valid JSON") from None
    if not isinstance(content, dict):
        raise Damaged(path, "it holds no mapping")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def set_aside(path: Path) -> Path:
    """Move a damaged file or folder to ``.damaged/`` beside it and return its new path."""
    folder = path.parent / ".damaged"
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (aside := folder / f"{path.name}-{number}").exists():
        number += 1
    os.replace(path, aside)
    return aside


def safe(name: str) -> str:
    """Refuse names that could leave their folder or confuse a shell."""
    if not SAFE_NAME.fullmatch(name):
        raise UserError(
            f"the name '{name}' cannot be used: only letters, digits and _ . + = -, first a letter or digit, at"
            " most 100"
        )
    return name


def writable(root: Path) -> None:
    """Create the output root, for its owner alone. Raises `UserError` where that is not allowed.

    A folder that is there keeps its mode: that of a group is made beforehand.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UserError(
            f"output folder {root} cannot be written: {error.strerror}; choose another with --out or ABLATE_HOME"
        ) from None


HALF_WRITTEN = ".part"
"""End of the name of a file that will replace another; a kill can leave it behind."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file in one step by what the block writes to the path that it gets: a reader gets the old content or
    the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(HALF_WRITTEN, f".{path.name}.", path.parent)
    beside = Path(name)
    try:
        yield beside
        os.fsync(handle)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file by a text in one step."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_changed(path: Path, text: str) -> None:
    """`write_atomic`, unless the file holds this text: then what is newer than the file need not be made again."""
    if not path.exists() or path.read_bytes() != text.encode():
        write_atomic(path, text)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON with sorted keys."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")
