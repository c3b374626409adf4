"""From files to trials: the rows of each, whether its file's name or two columns of a table tell arm and seed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.run.layout import safe
from pipeline.run.store import file_digest
from studies.importing.files import LogFile, find_files, natural, refuse_same_case, stray, trial_of
from studies.importing.mapping import Columns, MappingFile, Misfit
from studies.importing.naming import AXES
from studies.importing.programs import bare
from studies.importing.prompts import id_column
from studies.importing.rows import LogRow, number, read_log

Trial = tuple[str, int]
_BETWEEN = " - "
"""Stands between run and metric in the columns of a panel of W&B."""


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
    panel: str = ""
    """The x-axis of a panel, whose run can have other metrics in other files."""

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

    A file of which neither the name nor two columns tell arm and seed, or that has no x-axis, is ignored, unless there
    is no other. Raises `UserError` for a file that cannot be read, and for two logs of one trial.
    """
    files, left = find_files(folder, mapping.files, mapping.include, mapping.exclude)
    found, strays, unplaced = Found(ignored=left), list[LogFile](), list[Log]()
    for file in files:
        logs, why = _logs(file, mapping)
        if why is not None:
            strays.append(file)
            found.ignored[file.name] = why
        for log in logs:
            if _has_axis(mapping.of_arm(log.arm), log.keys):
                _add(found.series, log, folder)
            elif id_column(mapping, log.keys) is not None:
                _add(found.prompts, log, folder)
            else:
                unplaced.append(log)
    if found.trials:
        found.ignored |= {log.name: "no column of it is an x-axis, such as step or global_step" for log in unplaced}
    else:
        for log in unplaced:
            _add(found.series, log, folder)
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
    runs, unnamed = _panel(file, rows, mapping)
    if runs:
        return runs, f"tells no arm and seed of {', '.join(unnamed)}" if unnamed else None
    has = {columns.arm, *([columns.seed] if isinstance(columns.seed, str) else [])} <= keys
    if has and (mapping.columns or file.trial is None):
        return _table(file, rows, columns), None
    if file.trial is None:
        wanted = f"'{columns.arm}'" + (f" and '{columns.seed}'" if isinstance(columns.seed, str) else "")
        return [], f"neither its name nor columns {wanted} tell arm and seed"
    arm, seed = file.trial
    return [Log(arm, seed, file.path, file.name, rows, cut, file_digest(file.path))], None


def _panel(file: LogFile, rows: Sequence[LogRow], mapping: MappingFile) -> tuple[list[Log], list[str]]:
    """The runs of a panel that W&B exported, and the names of runs that tell no arm and seed.

    Beside the x-axis its columns are ``run - metric`` and, with ``__MIN`` and ``__MAX`` behind it, the range that the
    value was averaged over, which is left. Of another file: nothing.
    """
    runs: dict[str, list[LogRow]] = {}
    for row in rows:
        axis = {"_step" if key == "Step" else key: value for key, value in row.values.items() if _BETWEEN not in key}
        own: dict[str, dict[str, Any]] = {}
        for key, value in row.values.items():
            run, between, metric = key.rpartition(_BETWEEN)
            if between and len(axis) == 1 and not metric.endswith(("__MIN", "__MAX")):
                own.setdefault(run, {})[metric] = value
        for run, values in own.items():
            runs.setdefault(run, []).append(LogRow(row.line, {**axis, **values, **axis}))
    trials = {run: trial_of(run, mapping.files, file.name, file.path.parent) for run in runs}
    return [
        Log(*trial, file.path, f"{file.name} ({run})", runs[run], None, _digest(runs[run]), _axis(runs[run]))
        for run, trial in trials.items()
        if trial
    ], [run for run, trial in trials.items() if not trial]


def _axis(rows: Sequence[LogRow]) -> str:
    return next(iter(rows[0].values))


def _joined(one: Log, two: Log) -> Log:
    """Two panels of one run over the same x-axis, the values of a step in one row."""
    rows: dict[float, LogRow] = {}
    for row in (*one.rows, *two.rows):
        x = number(row.values[one.panel])
        at = math.inf if x is None else x
        rows[at] = LogRow(row.line, {**rows[at].values, **row.values} if at in rows else row.values)
    joined = [rows[x] for x in sorted(rows)]
    return replace(one, name=f"{one.name}, {two.name}", rows=joined, digest=_digest(joined))


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
    if twin is not log and twin.arm == log.arm and log.panel and log.panel == twin.panel:
        log = _joined(twin, log)
    elif twin is not log:
        if twin.arm != log.arm:
            refuse_same_case([twin.arm, log.arm], folder)
        raise UserError(
            f"{folder}: '{twin.name}' and '{log.name}' are both arm '{log.arm}' seed {log.seed}; keep one of them, or"
            " leave one out with --exclude"
        )
    logs[log.arm, log.seed] = log
