"""A file of prompts and completions, and the same file with columns added: parquet, CSV and JSONL."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.files import FORMATS, check_rows, numbered_lines, readable, require
from pipeline.errors import UserError
from pipeline.named_files import require_file, state
from pipeline.wording import shown

NEEDED = ("prompt", "completion")
FIELD = 2**31 - 1
"""Characters in a field of a CSV file, at most: a long text is no fault."""
MOST_ROWS = 2_000_000
"""Of a parquet file; each row becomes objects of Python."""
Columns = Mapping[str, Sequence[float]]
Rows = list[tuple[int, dict[str, Any]]]
"""Each with its place in the file, from 1 on: its line, or in parquet its row."""
Write = Callable[[Path, Columns], None]


@dataclass(frozen=True)
class Sheet:
    """The rows of a file; whatever stands beside prompt and completion is written back as it was read."""

    prompts: list[str]
    completions: list[str]
    names: Sequence[str]
    """Of the columns that are there."""
    places: list[str]
    """The file and the place of each row, for messages."""
    write: Write
    """Write the rows with these columns added."""


def read_sheet(path: Path) -> Sheet:
    """Read a file by its suffix. Raises `UserError` with the line of the first row that cannot be used."""
    if state(path) is None:
        raise UserError(f"{shown(path, 400)}: there is no such file")
    require_file(path, str(path))
    if path.suffix[1:] not in FORMATS:
        raise UserError(f"{path}: the format must be one of {', '.join(FORMATS)}")
    with readable(path):
        names, rows, write = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}[path.suffix[1:]](path)
    if not rows:
        raise UserError(f"{path}: it has no rows")
    word = "row" if path.suffix == ".parquet" else "line"
    places = [f"{path}, {word} {number}" for number, _ in rows]
    for place, (_, row) in zip(places, rows, strict=True):
        _check(row, place)
    return Sheet([row["prompt"] for _, row in rows], [row["completion"] for _, row in rows], names, places, write)


def _check(row: Mapping[str, Any], place: str) -> None:
    """Refuse a row without two texts, or with half of a surrogate pair, which no file can hold. Raises `UserError`."""
    require(NEEDED, list(row), place)
    for name in NEEDED:
        if not isinstance(row[name], str):
            raise UserError(f"{place}: {name} is {shown(json.dumps(row[name], default=str))}, not a text")
    if not (row["prompt"] + row["completion"]).strip():
        raise UserError(f"{place}: prompt and completion are empty")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise UserError(f"{place}: {half} alone is no character but half of one; repair the text") from None


def _check_names(names: Sequence[str], path: Path) -> None:
    """Refuse columns that are absent or there twice. Raises `UserError`."""
    require(NEEDED, names, str(path))
    for name in NEEDED:
        if names.count(name) > 1:
            raise UserError(f"{path}: {names.count(name)} columns are called '{name}'; rename or drop all but one")


def _jsonl(path: Path) -> tuple[Sequence[str], Rows, Write]:
    rows = list(numbered_lines(path))

    def write(target: Path, columns: Columns) -> None:
        with target.open("w", encoding="utf-8") as file:
            for index, (_, row) in enumerate(rows):
                added = {name: values[index] for name, values in columns.items()}
                file.write(json.dumps({**row, **added}, ensure_ascii=False) + "\n")

    return list(dict.fromkeys(name for _, row in rows for name in row)), rows, write


def _csv(path: Path) -> tuple[Sequence[str], Rows, Write]:
    csv.field_size_limit(FIELD)
    lines, line = list[tuple[int, list[str]]](), 1
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for row in reader:
                if row:
                    lines.append((line, row))
                line = reader.line_num + 1
        except csv.Error as error:
            raise UserError(f"{path}, line {line}: it is no CSV ({error})") from None
    header = lines[0][1] if lines else []
    _check_names(header, path)
    for line, row in lines:
        if len(row) != len(header):
            raise UserError(f"{path}, line {line}: {len(row)} fields, and the header has {len(header)}")

    def write(target: Path, columns: Columns) -> None:
        added: Iterable[Sequence[Any]] = [[*columns], *zip(*columns.values(), strict=True)]
        with target.open("w", encoding="utf-8", newline="") as file:
            both = zip(lines, added, strict=True)
            csv.writer(file, lineterminator="\n").writerows([*row, *more] for (_, row), more in both)

    return header, [(line, dict(zip(header, row, strict=True))) for line, row in lines[1:]], write


def _parquet(path: Path) -> tuple[Sequence[str], Rows, Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_rows(path, MOST_ROWS)
    _check_names(pq.read_schema(path).names, path)
    table = pq.read_table(path)

    def write(target: Path, columns: Columns) -> None:
        wider = table
        for name, values in columns.items():
            wider = wider.append_column(name, pa.array(values, pa.float64()))
        pq.write_table(wider, target)

    return table.column_names, list(enumerate(table.select(list(NEEDED)).to_pylist(), 1)), write
