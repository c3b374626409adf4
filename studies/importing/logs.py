"""Reading logs: the tables in the files below a folder, and the arm and seed of each row. Nothing is ever unpickled."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.named_files import UNREADABLE, below, is_file, kind_of, require_file
from pipeline.run.layout import safe
from pipeline.wording import in_words
from studies.importing.maps import PROMPT_ID, Map, first, present

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
RULE = f"name logs ARM/seed_N, ARM-seedN, seed_N/ARM or ARM/N, with {', '.join(SUFFIXES)}"
EVENTS = "events.out.tfevents.*"
KEPT = 100
"""Lines that are read again at each look at a growing log: more than those of one record."""
_FORMS = (
    r"(?:(?P<arm>.+)[-_./])?seed[-_=]?(?P<seed>\d{1,18})",
    r"seed[-_=]?(?P<seed>\d{1,18})[-_/](?P<arm>.+)",
    r"(?P<arm>.+)/(?P<seed>\d{1,18})",
)
Cell = tuple[str, int]
"""Arm and seed."""


def find_logs(folder: Path, own: Map) -> tuple[dict[Cell, pd.DataFrame], dict[str, str]]:
    """The rows below a folder, or in one file, by arm and seed, indexed by file and place in it: ``line 4``, of JSON
    lists and parquet ``row 4``. And why other files are not read. Raises `UserError`, also where no log is found."""
    if kind_of(folder) is None:
        raise UserError(f"{folder}: no such folder or file; {RULE}")
    root = folder if folder.is_dir() else folder.parent
    found, unread = dict[Cell, dict[str, pd.DataFrame]](), dict[str, str]()
    for label, path in _files(folder) if folder.is_dir() else [(folder.with_suffix(""), folder)]:
        name, trial = path.relative_to(root).as_posix(), label.relative_to(root).as_posix()
        try:
            table = read_table(path)
        except UserError as error:
            if _cell(trial, path):
                raise
            unread[name] = str(error)
            continue
        for one, rows in _trials(table, trial, own):
            part = f"{name} ({one.replace('/seed_', ' seed ')})" if one != trial else name
            columns = [str(name) for name in rows.dropna(axis=1, how="all")]
            if (cell := _cell(one, path)) is None:
                unread[part] = "neither its name nor columns hold an arm and a seed"
            elif first(own.step, columns) is None and PROMPT_ID not in present(own.prompts, columns):
                hint = nearest(own.step[0], columns)
                unread[part] = f"no column '{own.step[0]}'{hint}, and no prompt_id; columns: {', '.join(columns[:12])}"
            else:
                found.setdefault(cell, {})[part] = rows[columns]
    if not found:
        why = "; ".join(f"{name}: {why}" for name, why in list(unread.items())[:3]) or "it holds none"
        raise UserError(f"{folder}: no log ({why}); {RULE}, or state `arm`, `seed` or `step` in a map")
    return {cell: pd.concat(found[cell]) for cell in sorted(found)}, unread


def number(value: Any) -> float:
    """A logged number, also one in quotes; NaN where nothing was recorded, infinity where it is not finite, and minus
    infinity where it is no number."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    try:
        return found if math.isfinite(found := float(value)) else math.inf
    except (TypeError, ValueError, OverflowError):
        return -math.inf


def find_file(folder: Path, patterns: Iterable[str]) -> Path | None:
    """The newest of the files, or folders with TensorBoard's, that match the first of some patterns with a match."""
    for pattern in patterns:
        found = [path for path in folder.glob(pattern) if path.is_file() or any(path.rglob(EVENTS))]
        if found:
            return max(found, key=lambda path: (path.stat().st_mtime_ns, path))
    return None


class Growing:
    """A log that is read while it grows."""

    def __init__(self) -> None:
        self._file: tuple[Path, int] | None = None
        self._end, self._lines = 0, list[bytes]()

    def rows(self, path: Path) -> pd.DataFrame:
        """The rows since the last look and `KEPT` lines before them; of a file that was replaced or shortened, or has
        no lines, all rows. Raises as `read_table`, and `OSError`."""
        if path.suffix not in (".jsonl", ".csv"):
            return read_table(path)
        with path.open("rb") as log:
            stat, head = os.fstat(log.fileno()), log.readline() if path.suffix == ".csv" else b""
            if self._file != (path, stat.st_ino) or stat.st_size < self._end:
                self._file, self._end, self._lines = (path, stat.st_ino), 0, []
            begin = log.seek(max(self._end, len(head)))
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._end = begin + len(whole)
        self._lines = [*self._lines[-KEPT:], *whole.splitlines(keepends=True)]
        return read_table(path, b"".join([head, *self._lines]).decode("utf-8-sig", "replace"))


def _read_events(folder: Path) -> pd.DataFrame:
    """The scalars of all TensorBoard's event files below a folder, a row a step; of two values at one step the last
    counts, as after a resume."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise UserError(
            f"{folder}: TensorBoard's event files can be read only where the package tensorboard is installed"
        ) from None
    rows = dict[int, dict[str, Any]]()
    for file in sorted(folder.rglob(EVENTS), key=lambda path: path.name):  # by the time in their names
        events = EventAccumulator(str(file), {"scalars": 0})
        events.Reload()
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                value = event.value if math.isfinite(event.value) else "NaN"
                rows.setdefault(event.step, {"step": event.step})[name.removeprefix("train/")] = value
    return pd.DataFrame([rows[step] for step in sorted(rows)], [f"step {step}" for step in sorted(rows)], dtype=object)


def read_table(path: Path, text: str | None = None) -> pd.DataFrame:
    """The rows of a file, or of a `text` in its place, as logged, by their places; a recorded NaN is a text, and a NaN
    was not recorded. Half a line, left by a killed program, is no row. Raises `UserError` with file and place for what
    cannot be read."""
    if path.is_dir():
        return _read_events(path)
    require_file(path, str(path))
    rows, word, at = dict[str, Any](), "line" if path.suffix in (".csv", ".jsonl") else "row", 0
    try:
        text = "" if path.suffix == ".parquet" else path.read_text("utf-8-sig") if text is None else text
        for at, row in _rows(path, text):
            row = json.loads(row, parse_constant=str) if isinstance(row, str) else row
            if not isinstance(row, dict) or None in row:
                raise ValueError("no mapping of names to values, or more cells than there are columns")
            row |= row["data"] if isinstance(row.get("data"), dict) else {}  # verl's, where only `step` stands outside
            rows[f"{word} {at}"] = {name: "NaN" if one != one else one for name, one in row.items() if one != ""}
    except UNREADABLE as error:
        if path.suffix != ".jsonl" or not rows or at <= (text or "").count("\n"):
            place = f"{path}, {word} {at}" if at else str(path)
            raise UserError(f"{place}: cannot be read as {path.suffix[1:]}: {in_words(error)}") from None
    frame = pd.DataFrame([*rows.values()], index=[*rows], dtype=object).dropna(how="all").dropna(axis=1, how="all")
    if frame.empty:
        raise UserError(f"{path}: it holds no rows")
    bare = {name: str(name).removeprefix("train/") for name in frame}  # what trackers put before names
    return frame.rename(columns={name: short for name, short in bare.items() if short not in frame})


def _rows(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The rows of a file and their numbers; of JSON lines as texts."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            yield from enumerate(file.read(use_threads=False).to_pylist(), 1)
    elif path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
        if len({*(names := reader.fieldnames or ())}) < len(names):
            raise ValueError(f"two columns have one name: {', '.join(names)}")
        yield from ((reader.line_num, cells) for cells in reader)
    elif path.suffix == ".jsonl":
        yield from ((at, line) for at, line in enumerate(text.split("\n"), 1) if line.strip())
    else:
        content = json.loads(text, parse_constant=str)
        listed = content.get("log_history") if isinstance(content, dict) else content
        if not isinstance(listed, list):
            raise ValueError("a list of mappings, or a trainer's state with 'log_history', is expected")
        yield from enumerate(listed, 1)


def _files(folder: Path) -> list[tuple[Path, Path]]:
    """Files below a folder, each after its path without suffix; a trainer's output folder is one: its newest state."""
    paths = [path for path in below(folder, str(folder)) if path.suffix in SUFFIXES and is_file(path)]
    paths = [path for path in paths if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    runs = dict[Path, tuple[float, Path]]()
    for path in (path for path in paths if path.name == "trainer_state.json"):
        checkpoint = re.fullmatch(r"checkpoint-(\d+)", path.parent.name) if path.parent != folder else None
        run, age = (path.parents[1], float(checkpoint[1])) if checkpoint else (path.parent, math.inf)
        runs[run] = max(runs.get(run, (age, path)), (age, path))
    others = [path for path in paths if not any(run in path.parents for run in runs)]
    return [(run, path) for run, (_, path) in runs.items()] + [(path.with_suffix(""), path) for path in others]


def _cell(trial: str, path: Path) -> Cell | None:
    """Arm and seed in the name of a trial; None where it does not hold them. Raises `UserError`."""
    fit = next((fit for form in _FORMS if (fit := re.fullmatch(form, trial, re.IGNORECASE))), None)
    return (safe((fit["arm"] or path.resolve().parent.name).replace("/", "-")), int(fit["seed"])) if fit else None


def _trials(rows: pd.DataFrame, label: str, own: Map) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each trial in a file: a panel of W&B with columns ``run - metric``, a table of many trials, or one
    trial with the label of the file."""
    heads, arm, seed = [str(name) for name in rows if " - " not in str(name)], own.arm, own.seed
    if len(heads) == 1 < len(rows.columns):
        runs = dict[str, dict[str, str]]()
        for name in rows.columns.drop(heads):
            run, _, metric = name.rpartition(" - ")
            if metric not in heads and not metric.endswith(("__MIN", "__MAX")):  # the range that a value is the mean of
                runs.setdefault(run, {}).setdefault(metric.removeprefix("train/"), name)
        for run, names in runs.items():
            part = rows[[*heads, *names.values()]].set_axis([*heads, *names], axis=1)
            yield run, part.dropna(subset=[*names], how="all")
    elif arm in rows and (isinstance(seed, int) or seed in rows):
        seeds = str(seed) if isinstance(seed, int) else rows[seed].map(str, na_action="ignore")
        trials = rows[arm].map(str, na_action="ignore") + "/seed_" + seeds
        rows = rows.drop(columns=[arm, str(seed)], errors="ignore")
        yield from ((str(trial), part) for trial, part in rows.groupby(trials, sort=False, dropna=False))
    else:
        yield label, rows
