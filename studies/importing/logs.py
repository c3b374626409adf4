"""From files to trials: the rows of each, whether its file's name or two columns of a table tell arm and seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.run.layout import safe
from pipeline.run.store import file_digest
from studies.importing.files import LogFile, find_files, natural, refuse_same_case, stray
from studies.importing.mapping import Columns, MappingFile, Misfit
from studies.importing.naming import AXES
from studies.importing.programs import bare
from studies.importing.prompts import id_column
from studies.importing.rows import LogRow, number, read_log

Trial = tuple[str, int]


@dataclass(frozen=True)
class Log:
    """The rows of one trial."""

    arm: str
    seed: int
    path: Path
    name: str
    """How messages call it: its file, and of a table also which of its trials."""
    rows: list[LogRow]
    cut: int | None
    """The line of an unfinished last row."""
    digest: str
    """Of what the rows were read from."""

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.rows for key in row.values))


@dataclass
class Found:
    """Everything below a folder."""

    series: dict[Trial, Log] = field(default_factory=dict)
    prompts: dict[Trial, Log] = field(default_factory=dict)
    """Outcomes by prompt instead of by step."""
    ignored: dict[str, str] = field(default_factory=dict)
    """File -> why it is not read."""

    @property
    def trials(self) -> list[Trial]:
        """Arms and seeds, in the order of people."""
        return sorted({*self.series, *self.prompts}, key=lambda trial: (natural(trial[0]), trial[1]))

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for log in self.series.values() for key in log.keys))


def find_logs(folder: Path, mapping: MappingFile) -> Found:
    """Read the logs below `folder`.

    A file of which neither the name nor two columns tell arm and seed is ignored, unless there is no other. Raises
    `UserError` for a file that cannot be read, and for two logs of one trial.
    """
    files, left = find_files(folder, mapping.files, mapping.include, mapping.exclude)
    found, strays = Found(ignored=left), []
    for file in files:
        logs, why = _logs(file, mapping)
        if why is not None:
            strays.append(file)
            found.ignored[file.name] = why
        for log in logs:
            by_prompt = id_column(mapping, log.keys) is not None and not _has_axis(mapping, log.keys)
            _add(found.prompts if by_prompt else found.series, log, folder)
    if not found.trials:
        why = found.ignored[strays[0].name]
        raise Misfit(f"{folder}: {stray(folder, strays[0], mapping.files)} ({why})")
    refuse_same_case([arm for arm, _ in found.trials], folder)
    return found


def _logs(file: LogFile, mapping: MappingFile) -> tuple[list[Log], str | None]:
    """The trials of a file, or why there are none."""
    columns = mapping.columns or Columns()
    try:
        rows, cut = read_log(file.path)
    except UserError as error:
        if file.trial is not None:
            raise
        return [], f"its name tells no arm and seed, and it is no table: {str(error).partition(': ')[2]}"
    keys = {key for row in rows for key in row.values}
    has = {columns.arm, *([columns.seed] if isinstance(columns.seed, str) else [])} <= keys
    if has and (mapping.columns or file.trial is None):
        return _table(file, rows, columns), None
    if file.trial is None:
        wanted = f"'{columns.arm}'" + (f" and '{columns.seed}'" if isinstance(columns.seed, str) else "")
        return [], f"neither its name nor columns {wanted} tell arm and seed"
    arm, seed = file.trial
    return [Log(arm, seed, file.path, file.name, rows, cut, file_digest(file.path))], None


def _table(file: LogFile, rows: Sequence[LogRow], columns: Columns) -> list[Log]:
    """The rows of a table by trial, without the columns that tell them apart."""
    by_trial: dict[Trial, list[LogRow]] = {}
    for row in rows:
        arm = _arm(file, row, columns.arm)
        seed = columns.seed if isinstance(columns.seed, int) else _seed(file, row, columns.seed)
        rest = {key: value for key, value in row.values.items() if key not in (columns.arm, columns.seed)}
        by_trial.setdefault((arm, seed), []).append(LogRow(row.line, rest))
    return [
        Log(arm, seed, file.path, f"{file.name} ({arm} seed {seed})", own, None, _digest(own))
        for (arm, seed), own in by_trial.items()
    ]


def _arm(file: LogFile, row: LogRow, column: str) -> str:
    try:
        return safe(str(row.values.get(column, "")))
    except UserError as error:
        raise UserError(f"{file.name}, line {row.line}: {column}: {error}") from None


def _seed(file: LogFile, row: LogRow, column: str) -> int:
    value = number(row.values.get(column))
    if value is None or not 0 <= value < 2**53 or value != int(value):
        said = row.values.get(column)
        raise UserError(f"{file.name}, line {row.line}: {column} = {said!r}: a seed is a whole number, 0 or more")
    return int(value)


def _digest(rows: Sequence[LogRow]) -> str:
    content: list[dict[str, Any]] = [row.values for row in rows]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _has_axis(mapping: MappingFile, keys: Sequence[str]) -> bool:
    return any(key == mapping.step.key or bare(key) in AXES for key in keys)


def _add(logs: dict[Trial, Log], log: Log, folder: Path) -> None:
    twin = next((one for (arm, seed), one in logs.items() if (arm.lower(), seed) == (log.arm.lower(), log.seed)), log)
    if twin is not log:
        if twin.arm != log.arm:
            refuse_same_case([twin.arm, log.arm], folder)
        raise UserError(
            f"{folder}: '{twin.name}' and '{log.name}' are both arm '{log.arm}' seed {log.seed}; keep one of them, or"
            " leave one out with --exclude"
        )
    logs[log.arm, log.seed] = log
