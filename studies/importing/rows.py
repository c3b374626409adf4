"""Reading a log: JSON lines, a JSON list, a trainer's state, CSV or parquet, as rows that know their line. Nothing is
ever unpickled."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.files import check_rows
from pipeline.errors import UserError
from pipeline.named_files import UNREADABLE, first_line, require_file

HISTORY = "log_history"
MOST_BYTES, MOST_ROWS = 2**30, 2_000_000
"""Of one log: a trial writes a record for each step."""
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class LogRow:
    """What a program logged at once."""

    line: int
    values: dict[str, Any]


def read_log(path: Path) -> tuple[list[LogRow], int | None]:
    """All rows of a log, and the line of an unfinished last one, which a program that still writes or was killed
    leaves.

    Raises `UserError` with file and line for anything else that cannot be read.
    """
    require_file(path, str(path), MOST_BYTES)
    if path.suffix == ".parquet":
        return _filled(list(_parquet(path)), path), None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    cut: int | None = None
    try:
        if path.suffix == ".csv":
            rows = list(_csv(text, path))
        elif path.suffix == ".json":
            rows = list(_list(text, path))
        else:
            rows, cut = _lines(text, path)
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be a log") from None
    return _filled(rows, path), cut


def _filled(rows: list[LogRow], path: Path) -> list[LogRow]:
    if not rows:
        raise UserError(f"{path}: holds no row")
    return rows


def _parquet(path: Path) -> Iterator[LogRow]:
    """The rows of a table; the first has number 1."""
    import pyarrow.parquet as pq

    try:
        check_rows(path, MOST_ROWS)
        with pq.ParquetFile(path) as file:
            found = file.read(use_threads=False).to_pylist()
    except UNREADABLE as error:
        raise UserError(f"{path}: not a parquet file: {first_line(error)}") from None
    for number, values in enumerate(found, 1):
        yield LogRow(number, {key: value for key, value in values.items() if value is not None})


def _lines(text: str, path: Path) -> tuple[list[LogRow], int | None]:
    rows: list[LogRow] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(LogRow(number, _flat(_mapping(_decode(line), path, number))))
        except ValueError as error:
            if number == len(lines) and rows:  # no line feed after it
                return rows, number
            raise UserError(
                f"{path}, line {number}: not JSON ({_short(error)}); one mapping a line is expected"
            ) from None
    return rows, None


def _list(text: str, path: Path) -> Iterator[LogRow]:
    """The mappings of a list, or of the list under ``log_history`` in a mapping."""
    try:
        start = _skip(text, 0)
        if text[start : start + 1] == "{":
            start = _history(text, start, path)
        if text[start : start + 1] != "[":
            raise UserError(f"{path}: a list of mappings, or a trainer's state with '{HISTORY}', is expected")
        line, seen = 1, 0
        for at, value in _elements(text, start):
            line, seen = line + text.count("\n", seen, at), at
            yield LogRow(line, _mapping(value, path, line))
    except ValueError as error:
        at = getattr(error, "pos", len(text))
        raise UserError(f"{path}, line {text.count(chr(10), 0, at) + 1}: not JSON ({_short(error)})") from None


def _history(text: str, start: int, path: Path) -> int:
    """Where the value of ``log_history`` begins, by walking over the keys of the outermost mapping."""
    at = _skip(text, start + 1)
    while text[at : at + 1] == '"':
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("':' expected", text, at)
        at = _skip(text, at + 1)
        if key == HISTORY:
            return at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
        at = _skip(text, at + 1) if text[at : at + 1] == "," else at
    raise UserError(f"{path}: a mapping without '{HISTORY}'; a list of mappings, or a trainer's state, is expected")


def _elements(text: str, start: int) -> Iterator[tuple[int, Any]]:
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        value, end = _DECODER.raw_decode(text, at)
        yield at, value
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise json.JSONDecodeError("',' or ']' expected", text, at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _csv(text: str, path: Path) -> Iterator[LogRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        head = next(reader, [])
        repeated = sorted({name for name in head if head.count(name) > 1})
        if repeated:
            raise UserError(f"{path}, line 1: the column '{repeated[0]}' stands twice")
        for cells in reader:
            if len(cells) > len(head):
                raise UserError(f"{path}, line {reader.line_num}: {len(cells)} cells under {len(head)} column names")
            values = {name: cell.strip() for name, cell in zip(head, cells, strict=False) if cell.strip()}
            if values:
                yield LogRow(reader.line_num, values)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _mapping(value: Any, path: Path, line: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(
            f"{path}, line {line}: a mapping of names to numbers is expected, this is a {type(value).__name__}"
        )
    return value


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """verl's file logger writes a step and, apart from it, what was logged there (verl/utils/tracking.py)."""
    inner = values.get("data")
    return {"step": values["step"], **inner} if set(values) == {"step", "data"} and isinstance(inner, dict) else values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the name '{next(name for name in names if names.count(name) > 1)}' stands twice in one mapping"
        )
    return mapping


def _whole(digits: str) -> int | float:
    """A number of hundreds of digits is no number of anything; as a float it is infinite, and is then reported."""
    return int(digits) if len(digits) < 300 else float(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_whole)


def _decode(line: str) -> Any:
    return _DECODER.decode(line)


def _short(error: ValueError) -> str:
    return str(error).split(": line ")[0]


def number(value: Any) -> float | None:
    """A logged number, also one in quotes; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
