"""A file of prompts and completions, and the same file with columns added: parquet, CSV and JSONL."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.files import FORMATS, check_rows, require
from pipeline.errors import UserError
from pipeline.named_files import UNREADABLE, first_line, require_file, state
from pipeline.wording import shown

NEEDED = ("prompt", "completion")
FIELD = 2**31 - 1
"""Characters in a field of a CSV file, at most: a long text is no fault."""
MOST_ROWS = 2_000_000
"""Of a parquet file; each row becomes objects of Python."""
Columns = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Sheet:
    """The rows of a file; whatever stands beside prompt and completion is written back as it was read."""

    prompts: list[str]
    completions: list[str]
    names: tuple[str, ...]
    """Of the columns that are there."""
    lines: Sequence[int]
    """Where each row stands in the file, from 1 on: its line, or in parquet its row."""
    write: Callable[[Path, Columns], None]
    """Write the rows with these columns added."""


def check_sheet(path: Path) -> None:
    """Refuse what is no file of a known format, before it is opened. Raises `UserError`."""
    if state(path) is None:
        raise UserError(f"{shown(path, 400)}: there is no such file")
    require_file(path, str(path))
    if path.suffix[1:] not in FORMATS:
        raise UserError(f"{path}: the format must be one of {', '.join(FORMATS)}")


def read_sheet(path: Path) -> Sheet:
    """Read a file by its suffix. Raises `UserError` with the line of the first row that cannot be used."""
    check_sheet(path)
    readers = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}
    try:
        sheet = readers[path.suffix[1:]](path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: it is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not sheet.prompts:
        raise UserError(f"{path}: it has no rows")
    return sheet


def _checked(path: Path, where: str, line: int, row: Mapping[str, Any]) -> tuple[str, str]:
    """Prompt and completion of a row. Raises `UserError`."""
    for name in NEEDED:
        if name not in row:
            its = shown(", ".join(map(str, row)), 1_000) or "nothing"
            raise UserError(f"{path}, {where} {line}: no '{name}'; it has {its}")
        if not isinstance(row[name], str):
            value = shown(json.dumps(row[name], default=str))
            raise UserError(f"{path}, {where} {line}: {name} is {value}, not a text")
    if not (row["prompt"] + row["completion"]).strip():
        raise UserError(f"{path}, {where} {line}: prompt and completion are empty")
    return row["prompt"], row["completion"]


def _jsonl(path: Path) -> Sheet:
    rows, lines = list[dict[str, Any]](), list[int]()
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, line {line}: it is no JSON ({first_line(error)})") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {line}: it is no object with prompt and completion")
            if "\\u" in text:
                _check_characters(path, line, row)
            rows.append(row)
            lines.append(line)

    def write(target: Path, columns: Columns) -> None:
        with target.open("w", encoding="utf-8") as file:
            for index, row in enumerate(rows):
                added = {name: values[index] for name, values in columns.items()}
                file.write(json.dumps({**row, **added}, ensure_ascii=False) + "\n")

    pairs = [_checked(path, "line", line, row) for line, row in zip(lines, rows, strict=True)]
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return Sheet([prompt for prompt, _ in pairs], [text for _, text in pairs], names, lines, write)


def _check_characters(path: Path, line: int, row: Mapping[str, Any]) -> None:
    """Refuse half of a surrogate pair, which no file can hold as UTF-8. Raises `UserError`."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise UserError(f"{path}, line {line}: {half} alone is no character but half of one; repair the text") from None


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse columns that are absent or there twice. Raises `UserError`."""
    require(NEEDED, names, str(path))
    for name in NEEDED:
        if names.count(name) > 1:
            raise UserError(f"{path}: {names.count(name)} columns are called '{name}'; rename or drop all but one")


def _csv(path: Path) -> Sheet:
    csv.field_size_limit(FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        found = list(_csv_rows(path, csv.reader(file, strict=True)))
    header = found[0][1] if found else []
    _check_names(path, header)
    lines, rows = [line for line, _ in found[1:]], [row for _, row in found[1:]]

    def write(target: Path, columns: Columns) -> None:
        with target.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*header, *columns])
            writer.writerows([*row, *(values[index] for values in columns.values())] for index, row in enumerate(rows))

    pairs = [
        _checked(path, "line", line, dict(zip(header, row, strict=True))) for line, row in zip(lines, rows, strict=True)
    ]
    return Sheet([prompt for prompt, _ in pairs], [text for _, text in pairs], tuple(header), lines, write)


def _csv_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The line at which each row begins, and its fields, as many as the header has."""
    width, line = 0, 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}, line {line}: it is no CSV ({error})") from None
        width = width or len(row)
        if row and len(row) != width:
            raise UserError(f"{path}, line {line}: {len(row)} fields, and the header has {width}")
        if row:
            yield line, row
        line = int(reader.line_num) + 1


def _parquet(path: Path) -> Sheet:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_rows(path, MOST_ROWS)
        _check_names(path, pq.read_schema(path).names)
        table = pq.read_table(path)
        texts = [table.column(name).to_pylist() for name in NEEDED]
    except UNREADABLE as error:
        raise UserError(f"{path}: it is no parquet file ({first_line(error)})") from None
    lines = range(1, table.num_rows + 1)

    def write(target: Path, columns: Columns) -> None:
        wider = table
        for name, values in columns.items():
            wider = wider.append_column(name, pa.array(values, pa.float64()))
        pq.write_table(wider, target)

    rows = (dict(zip(NEEDED, both, strict=True)) for both in zip(*texts, strict=True))
    pairs = [_checked(path, "row", line, row) for line, row in zip(lines, rows, strict=True)]
    return Sheet([prompt for prompt, _ in pairs], [text for _, text in pairs], tuple(table.column_names), lines, write)
